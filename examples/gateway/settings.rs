//! The settings from the command line and the environment.

use std::{
    env,
    net::IpAddr,
    path::{Path, PathBuf},
};

use http::{Uri, uri::Scheme};

use crate::Failure;

/// Settings of the gateway.
pub(crate) struct Settings {
    /// Address for clients.
    pub(crate) listen: String,
    /// Address for operators: the dashboard and the metrics.
    pub(crate) operations: String,
    /// `None` for the demo backend.
    pub(crate) backend: Option<Uri>,
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

// === Tokens ===

/// Tokens of the dashboard: to look, and to change limits too.
pub(crate) struct Tokens {
    pub(crate) read: String,
    pub(crate) write: String,
}

impl Tokens {
    /// Reads the tokens from the environment. On this machine alone there are others, which everybody knows.
    pub(crate) fn read(operations: IpAddr) -> Result<Self, Failure> {
        let token = |name: &str, of_example: &str| match env::var(name) {
            Ok(token) => Ok(token),
            Err(_) if operations.is_loopback() => Ok(of_example.to_owned()),
            Err(_) => Err(format!(
                "others can reach the dashboard on {operations}: set {name} to a secret of at least 16 characters, \
                 such as the output of `openssl rand -hex 16`"
            )),
        };
        Ok(Self {
            read: token("DASHBOARD_TOKEN", READ)?,
            write: token("DASHBOARD_WRITE_TOKEN", WRITE)?,
        })
    }

    /// Returns how the terminal shows both tokens. Secrets are not printed.
    pub(crate) fn shown(&self) -> [&str; 2] {
        [
            if self.read == READ {
                READ
            } else {
                "your DASHBOARD_TOKEN"
            },
            if self.write == WRITE {
                WRITE
            } else {
                "your DASHBOARD_WRITE_TOKEN"
            },
        ]
    }
}

const READ: &str = "look-at-the-limits";
const WRITE: &str = "change-the-limits-too";

pub(crate) const HELP: &str = "\
An API gateway: clients -> rate limits -> reverse proxy -> backend.

Options:
  --listen ADDRESS      where clients connect; default 127.0.0.1:3000, port 0 takes any free one
  --operations ADDRESS  where operators open the dashboard and the metrics; default 127.0.0.1:3001
  --backend URL         your service, such as http://127.0.0.1:8080; default: a demo backend, under a demo load
  --rules FILE          YAML, TOML or JSON; default examples/gateway/rules.yaml
  --shared-rules        take the rules that all gateways share in Redis; the file counts until there are any
  --no-load             no demo load
  --help                this text

Environment:
  REDIS_URL              count in this Redis, for all gateways; default: in process
  DASHBOARD_TOKEN        token to look at the dashboard
  DASHBOARD_WRITE_TOKEN  token to change limits on the dashboard
";
