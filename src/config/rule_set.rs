//! A set of rules: read from a file or a text, and given to a layer.

use std::{
    borrow::Borrow,
    fmt,
    fs::{self, File},
    io::{self, Read},
    path::Path,
    sync::Arc,
};

#[cfg(unix)]
use std::os::unix::fs::OpenOptionsExt;

use crate::{
    builder::RateLimitLayerBuilder,
    extract::{HashSecret, KeyExtractor},
    headers::Headers,
    key::Key,
    matching::IntoMatcher,
    request::RequestHead,
    rules::Rule,
};

use super::{
    decode::{self, Decoded},
    fault::{Fault, RuleSetError},
    from_json, from_toml, from_yaml,
    lines::Lines,
    names::HeaderFamily,
    node::Position,
    reading::FileReading,
    registry::Registry,
    size::{self, MAX_BYTES},
    spec::RuleSetSpec,
};

use super::overload::OverloadSettings;

#[cfg(feature = "client")]
use super::outgoing::OutgoingRules;

/// The format of a rule file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// `.json`
    Json,
    /// `.toml`
    Toml,
    /// `.yaml` and `.yml`
    Yaml,
}

impl Format {
    /// Returns the name, as in the extension of files: `json`, `toml` or `yaml`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Toml => "toml",
            Self::Yaml => "yaml",
        }
    }

    /// Returns the format of files with this extension.
    pub(super) fn of_extension(extension: &str) -> Option<Self> {
        match extension.to_ascii_lowercase().as_str() {
            "json" => Some(Self::Json),
            "toml" => Some(Self::Toml),
            "yaml" | "yml" => Some(Self::Yaml),
            _ => None,
        }
    }

    /// Returns the characters for each of which the parser keeps a few hundred bytes.
    const fn separators(self) -> &'static str {
        match self {
            // Its parser keeps nothing but the positions of values.
            Self::Json => "",
            Self::Toml => ",=.[{",
            Self::Yaml => ",:?[{&*!",
        }
    }
}

/// Rules that were read from a file and checked. Clones are cheap.
///
/// Two sets are equal if the same is written in them, in whatever format.
#[derive(Clone)]
pub struct RuleSet {
    data: Arc<Decoded>,
}

impl RuleSet {
    /// Reads a file. The extension of its name is its [`Format`].
    ///
    /// # Errors
    ///
    /// All faults of the file, or why it cannot be read.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, RuleSetError> {
        RuleSetReader::default().read_file(path)
    }

    /// Reads a text.
    ///
    /// # Errors
    ///
    /// All faults of the text.
    pub fn parse(format: Format, text: &str) -> Result<Self, RuleSetError> {
        RuleSetReader::default().parse(format, text)
    }

    /// Returns what is written in the file.
    #[must_use]
    #[doc(hidden)]
    pub fn spec(&self) -> &RuleSetSpec {
        &self.data.spec
    }

    /// Returns the set as JSON, from which an equal set can be read.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(&self.data.spec).expect("the names of all fields are text")
    }

    /// Returns the rules.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.data.rules
    }

    /// Returns the settings of an overload limit.
    pub(super) fn overload(&self) -> Option<&OverloadSettings> {
        self.data.overload.as_ref()
    }

    /// Returns the settings of a layer for calls that go out.
    #[cfg(feature = "client")]
    pub(super) fn outgoing(&self) -> Option<&OutgoingRules> {
        self.data.outgoing.as_ref()
    }
}

impl PartialEq for RuleSet {
    fn eq(&self, other: &Self) -> bool {
        self.data.spec == other.data.spec
    }
}

impl fmt::Debug for RuleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.data.spec.fmt(f)
    }
}

impl RateLimitLayerBuilder {
    /// Adds the rules of a [`RuleSet`], with its lists of requests that are forbidden or skipped, its headers and its jitter.
    ///
    /// Default: none. Rules from code can be added beside them.
    pub fn rules(mut self, set: impl Borrow<RuleSet>) -> Self {
        let set = set.borrow();
        for rule in &set.data.rules {
            self = self.policy(rule.clone());
        }
        for matcher in &set.data.forbid {
            self = self.forbid(matcher.clone());
        }
        for matcher in &set.data.skip {
            self = self.skip(matcher.clone());
        }
        if let Some(percent) = set.data.spec.retry_after_jitter {
            self = self.retry_after_jitter(percent / 100.0);
        }
        if let Some(families) = &set.data.spec.headers {
            self = self.headers(headers(families.as_slice()));
        }
        match set.data.spec.shown_limit {
            Some(shown) => self.shown_limit(shown.into()),
            None => self,
        }
    }
}

fn headers(families: &[HeaderFamily]) -> Headers {
    let family = |family: &HeaderFamily| match family {
        HeaderFamily::Discord => Headers::discord().into(),
        HeaderFamily::Draft06 => Headers::draft06(),
        HeaderFamily::Draft11 => Headers::draft11(),
        HeaderFamily::Legacy => Headers::legacy().into(),
        HeaderFamily::None => Headers::none(),
    };
    let all = families.iter().map(family);
    all.reduce(Headers::with).unwrap_or_else(Headers::none)
}

// === RuleSetReader ===

/// Reads rule sets that use extractors, matchers and tiers from code, by name.
///
/// # Examples
///
/// ```
/// use tollgate::{Key, RequestHead, config::{Format, RuleSetReader}};
///
/// let tenant = |head: &RequestHead| head.headers.get("x-tenant").map(|name| Key::new(name.as_bytes()));
/// let rules = RuleSetReader::default()
///     .extractor("tenant", tenant)
///     .parse(Format::Yaml, "rules: [{ id: api, key: { custom: tenant }, limit: 100/min }]")?;
/// # Ok::<(), tollgate::config::RuleSetError>(())
/// ```
#[derive(Clone, Default)]
#[must_use = "a reader does nothing until it reads"]
pub struct RuleSetReader {
    registry: Arc<Registry>,
}

impl RuleSetReader {
    /// Sets the secret that API keys and cookies of the rules are hashed with, which must be the same on every instance.
    ///
    /// Default: tollgate's constant, which is enough for keys that cannot be guessed. No field of a file contains it: read it
    /// from where the application keeps its secrets.
    pub fn hash_secret(mut self, secret: HashSecret) -> Self {
        self.registry().hash_secret = Some(secret);
        self
    }

    /// Registers an extractor for `key: { custom: name }`.
    pub fn extractor(mut self, name: impl Into<String>, extractor: impl KeyExtractor) -> Self {
        let extractors = &mut self.registry().extractors;
        extractors.insert(name.into(), Arc::new(extractor));
        self
    }

    /// Registers a matcher for `{ custom: name }` in the conditions of requests.
    pub fn matcher(mut self, name: impl Into<String>, matcher: impl IntoMatcher) -> Self {
        let matchers = &mut self.registry().matchers;
        matchers.insert(name.into(), Arc::new(matcher.into_matcher()));
        self
    }

    /// Registers a function that returns the name of a caller's tier, for `tier_from: { custom: name }`.
    ///
    /// With `None`, or a name that the rule does not have, the rule's own limit applies.
    pub fn tier_name(
        mut self,
        name: impl Into<String>,
        tier: impl Fn(&RequestHead<'_>, &Key) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        let tier_names = &mut self.registry().tier_names;
        tier_names.insert(name.into(), Arc::new(tier));
        self
    }

    fn registry(&mut self) -> &mut Registry {
        Arc::make_mut(&mut self.registry)
    }

    /// Reads a file. The extension of its name is its [`Format`].
    ///
    /// # Errors
    ///
    /// All faults of the file, or why it cannot be read.
    pub fn read_file(&self, path: impl AsRef<Path>) -> Result<RuleSet, RuleSetError> {
        let path = path.as_ref();
        let (format, text) = self.read_text(path)?;
        self.parse_named(&path.display().to_string(), format, &text)
    }

    /// Reads the text of a file, and its format.
    pub(super) fn read_text(&self, path: &Path) -> Result<(Format, String), RuleSetError> {
        let refused = |position, reason: String, remedy: &str| {
            let name = path.display().to_string();
            RuleSetError::of(&name, Fault::new(position, reason, remedy))
        };
        let extension = path.extension().and_then(|extension| extension.to_str());
        let Some(format) = extension.and_then(Format::of_extension) else {
            let remedy = "name it .yaml, .toml or .json";
            return Err(refused(START, "an unknown format".to_owned(), remedy));
        };
        let bytes = read_bounded(path)
            .map_err(|error| refused(START, error.to_string(), "check its name and permissions"))?;
        let fits = size::check(&bytes, format.separators());
        fits.map_err(|fault| RuleSetError::of(&path.display().to_string(), fault))?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let (valid, _) = error.as_bytes().split_at(error.utf8_error().valid_up_to());
            let valid = String::from_utf8_lossy(valid);
            let position = Lines::of(&valid).position(valid.len());
            refused(position, "not UTF-8".to_owned(), "save it as UTF-8")
        })?;
        Ok((format, text))
    }

    /// Reads a text.
    ///
    /// # Errors
    ///
    /// All faults of the text.
    pub fn parse(&self, format: Format, text: &str) -> Result<RuleSet, RuleSetError> {
        self.parse_named("rules", format, text)
    }

    pub(super) fn parse_named(
        &self,
        name: &str,
        format: Format,
        text: &str,
    ) -> Result<RuleSet, RuleSetError> {
        let of_text = |fault| RuleSetError::of(name, fault);
        size::check(text.as_bytes(), format.separators()).map_err(of_text)?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut reading = FileReading::new(&self.registry);
        let root = match format {
            Format::Toml => from_toml::parse(text, &mut reading),
            Format::Json => from_json::parse(text).map(Some).map_err(of_text)?,
            Format::Yaml => from_yaml::parse(text).map(Some).map_err(of_text)?,
        };
        let decoded = root.and_then(|root| decode::rule_set(&root, &mut reading));
        match decoded {
            Some(decoded) if reading.noted() == 0 => Ok(RuleSet {
                data: Arc::new(decoded),
            }),
            _ => Err(reading.into_error(name)),
        }
    }
}

impl fmt::Debug for RuleSetReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuleSetReader")
            .field("extractors", &self.registry.extractors.keys())
            .field("matchers", &self.registry.matchers.keys())
            .field("tier_names", &self.registry.tier_names.keys())
            .finish()
    }
}

/// Reads a file up to a byte more than it may have, also one that grows meanwhile.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let not_a_file = || io::Error::other("not a file");
    if !fs::metadata(path)?.is_file() {
        return Err(not_a_file());
    }
    let mut options = File::options();
    options.read(true);
    // A pipe may have taken the name since. Without the flag, to open it would wait for a process that writes to it.
    #[cfg(unix)]
    options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(not_a_file());
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

const START: Position = Position { line: 1, column: 1 };
