//! The settings from the command line and the environment.

use std::{
    env,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use http::{Uri, uri::Scheme};
use tollgate::extract::{ClientIp, KeyExtractor};

use crate::Failure;

/// Settings of the gateway.
pub(crate) struct Settings {
    /// Address for clients.
    pub(crate) listen: String,
    /// Address for operators: the dashboard and the metrics.
    pub(crate) operations: String,
    /// `None` for the demo backend.
    pub(crate) backend: Option<Uri>,
    /// Proxies that may name clients and schemes to the backend.
    pub(crate) trusted_proxies: ClientIp,
    /// Time in which a client has to send or read something.
    pub(crate) client_timeout: Duration,
    /// Host names of the address for operators. Without any, all are accepted.
    pub(crate) operations_hosts: Vec<String>,
    pub(crate) rules: PathBuf,
    /// Whether the rules are those that all gateways share in Redis.
    pub(crate) has_shared_rules: bool,
    pub(crate) has_load: bool,
    pub(crate) redis_url: Option<String>,
}

impl Settings {
    /// Reads the options after the program's name. `None` if they ask for [`HELP`].
    pub(crate) fn read(mut options: impl Iterator<Item = String>) -> Result<Option<Self>, Failure> {
        let mut settings = Self {
            redis_url: env::var("REDIS_URL").ok(),
            ..Self::default()
        };
        while let Some(option) = options.next() {
            let mut value = || {
                let value = options.next();
                value.ok_or_else(|| format!("{option} needs a value: see --help"))
            };
            match option.as_str() {
                "--listen" => settings.listen = value()?,
                "--operations" => settings.operations = value()?,
                "--backend" => settings.backend = Some(backend(&value()?)?),
                "--behind" => settings.trusted_proxies = trusted_proxies(&value()?)?,
                "--client-timeout" => settings.client_timeout = client_timeout(&value()?)?,
                "--operations-hosts" => settings.operations_hosts = list(&value()?),
                "--rules" => settings.rules = value()?.into(),
                "--shared-rules" => settings.has_shared_rules = true,
                "--no-load" => settings.has_load = false,
                "--help" | "-h" => return Ok(None),
                _ => return Err(format!("unknown option {option}: see --help").into()),
            }
        }
        if settings.has_shared_rules && settings.redis_url.is_none() {
            return Err(
                "--shared-rules needs a Redis: set REDIS_URL, such as redis://127.0.0.1/".into(),
            );
        }
        // Nobody asked to load a real service.
        settings.has_load &= settings.backend.is_none();
        Ok(Some(settings))
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:3000".to_owned(),
            operations: "127.0.0.1:3001".to_owned(),
            backend: None,
            trusted_proxies: ClientIp::behind(["127.0.0.0/8", "::1/128"]),
            client_timeout: Duration::from_secs(30),
            operations_hosts: Vec::new(),
            rules: default_rules(),
            has_shared_rules: false,
            has_load: true,
            redis_url: None,
        }
    }
}

/// Returns the file beside this source, relative to the current folder if it is in there.
fn default_rules() -> PathBuf {
    let path = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/examples/gateway/rules.yaml"
    ));
    let folder = env::current_dir().unwrap_or_default();
    path.strip_prefix(folder).unwrap_or(path).to_owned()
}

fn backend(url: &str) -> Result<Uri, Failure> {
    let refused = |reason: &str| format!("--backend {url}: {reason}");
    let uri: Uri = url
        .parse()
        .map_err(|_| refused("not a URL; write it as http://127.0.0.1:8080"))?;
    if uri.scheme() != Some(&Scheme::HTTP) {
        return Err(refused("this example reaches backends by http:// only").into());
    }
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(refused("paths come from the requests; write it as http://host:port").into());
    }
    Ok(uri)
}

fn trusted_proxies(networks: &str) -> Result<ClientIp, Failure> {
    let proxies = match networks {
        "none" => ClientIp::peer(),
        networks => ClientIp::behind(list(networks)),
    };
    proxies.validate()?;
    Ok(proxies)
}

fn client_timeout(seconds: &str) -> Result<Duration, Failure> {
    match seconds.parse() {
        Ok(seconds @ 1..=3_600) => Ok(Duration::from_secs(seconds)),
        _ => Err(format!("--client-timeout {seconds}: use 1 to 3600 seconds").into()),
    }
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(|item| item.trim().to_owned()).collect()
}

// === Tokens ===

/// Tokens of the dashboard: to look, and to change limits too.
pub(crate) struct Tokens {
    pub(crate) read: Token,
    pub(crate) write: Token,
}

/// A token, and how the terminal shows it.
pub(crate) struct Token {
    pub(crate) secret: String,
    pub(crate) shown: String,
}

impl Tokens {
    /// Reads the tokens from the environment. On this machine alone, others are made up for this run.
    pub(crate) fn read(operations: IpAddr) -> Result<Self, Failure> {
        Ok(Self {
            read: Token::read("DASHBOARD_TOKEN", operations)?,
            write: Token::read("DASHBOARD_WRITE_TOKEN", operations)?,
        })
    }
}

impl Token {
    fn read(name: &str, operations: IpAddr) -> Result<Self, Failure> {
        match env::var(name) {
            Ok(secret) => Ok(Self {
                secret,
                shown: format!("your {name}"),
            }),
            Err(_) if operations.is_loopback() => {
                let secret = random()?;
                let shown = secret.clone();
                Ok(Self { secret, shown })
            }
            Err(_) => Err(format!(
                "others can reach the dashboard on {operations}: set {name} to a secret of at least 16 characters, \
                 such as the output of `openssl rand -hex 16`"
            )
            .into()),
        }
    }
}

/// Returns 128 random bits.
fn random() -> Result<String, Failure> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

pub(crate) const HELP: &str = "\
An API gateway: clients -> rate limits -> reverse proxy -> backend.

Options:
  --listen ADDRESS      where clients connect; default 127.0.0.1:3000, port 0 takes any free one
  --operations ADDRESS  where operators open the dashboard and the metrics; default 127.0.0.1:3001
  --backend URL         your service, such as http://127.0.0.1:8080; default: a demo backend, under a demo load
  --behind NETWORKS     proxies whose X-Forwarded-For and X-Forwarded-Proto the backend gets, separated by commas, or none;
                        default 127.0.0.0/8,::1/128. Write the same networks in the rules.
  --client-timeout N    seconds in which a client has to send or read something; default 30
  --operations-hosts H  host names of that address, separated by commas; default: localhost and the address itself if only this
                        machine can reach it, else any
  --rules FILE          YAML, TOML or JSON; default examples/gateway/rules.yaml
  --shared-rules        take the rules that all gateways share in Redis; the file counts until there are any
  --no-load             no demo load
  --help                this text

Environment:
  REDIS_URL              count in this Redis, for all gateways; default: in process
  DASHBOARD_TOKEN        token to look at the dashboard; default: a random one, which is printed
  DASHBOARD_WRITE_TOKEN  token to change limits on the dashboard; default: a random one, which is printed
";
