//! Keys from a cookie.

use http::{HeaderMap, HeaderValue, StatusCode, header::COOKIE};

use crate::{
    error::Error,
    key::{HashSecret, Key},
    request::RequestHead,
};

use super::{
    api_key,
    caller_id::CallerId,
    extracted::Extracted,
    extractor::KeyExtractor,
    header,
    param::{self, ParamName, Plus},
};

/// The value of one cookie, hashed as a secret, since a session cookie is as good as a password.
///
/// The value is not checked, and a client can make up a new one for every request: put the layer inside the one that checks
/// sessions, or limit by address as well.
///
/// All `Cookie` lines are read, since HTTP/2 may split them. An empty cookie is absent. One that comes more than once, even
/// with the same value, is ambiguous and rejected: frameworks differ in which one they read, so with either choice a client
/// could be counted under a made-up value. Browsers send two cookies of one name if it is set for two paths or domains: set
/// it for one, or name it `__Host-...`, which allows no other.
///
/// Name and value are percent-decoded, and one pair of quotes around the value is removed, as frameworks do. So a client
/// does not get a second count by encoding its cookie in another way.
///
/// # Examples
///
/// ```
/// use tollgate::extract::{Cookie, KeyExtractor, PeerIp};
///
/// // By session, and by address for clients without one.
/// let by_session = Cookie::new("session").or_else(PeerIp);
///
/// // Not a secret: readable in Redis.
/// let by_language = Cookie::new("language").plaintext();
/// ```
#[derive(Clone, Debug)]
pub struct Cookie {
    name: ParamName,
    hash_secret: Option<HashSecret>,
    is_plaintext: bool,
}

impl Cookie {
    /// Reads the cookie of this name, which is case-sensitive. A name that is not a token (RFC 6265) fails when the layer is
    /// built.
    #[must_use]
    pub fn new(name: impl AsRef<str>) -> Self {
        Self {
            name: ParamName::new("cookie", name.as_ref()),
            hash_secret: None,
            is_plaintext: false,
        }
    }

    /// Sets the secret to hash with, which must be the same on every instance.
    ///
    /// Default: tollgate's constant, which is enough for cookies that cannot be guessed.
    #[must_use]
    pub fn hash_secret(mut self, secret: HashSecret) -> Self {
        self.hash_secret = Some(secret);
        self
    }

    /// Uses the value without hashing it: for cookies that are not secret.
    ///
    /// Default: hashed.
    #[must_use]
    pub fn plaintext(mut self) -> Self {
        self.is_plaintext = true;
        self
    }

    fn key(&self, value: &[u8]) -> Key {
        if self.is_plaintext {
            Key::new(value)
        } else {
            api_key::secret_key(self.hash_secret.as_ref(), value)
        }
    }
}

impl KeyExtractor for Cookie {
    fn extract(&self, head: &RequestHead<'_>) -> Extracted<Key> {
        let raw = Extracted::single(raw_values(head.headers, &self.name));
        raw.and_then(|raw| {
            let decoded = param::decode(raw, Plus::Literal);
            let value = unquoted(&decoded);
            if value.is_empty() {
                Extracted::Absent
            } else {
                Extracted::Found(self.key(value))
            }
        })
    }

    fn keys_of(&self, caller: &CallerId<'_>) -> Vec<Key> {
        Vec::from_iter(caller.value().map(|value| self.key(value.as_bytes())))
    }

    /// `cookie:` followed by the name.
    fn label(&self) -> &str {
        self.name.label()
    }

    fn validate(&self) -> Result<(), Error> {
        let name = self.name.as_str();
        let is_token = !name.is_empty() && name.as_bytes().iter().all(header::is_token_byte);
        let kind = "cookie: use letters, digits, - and _, as in \"session\"";
        self.name.validate(is_token, kind)
    }

    /// `Cookie`. No scheme is registered for cookies.
    fn challenge(&self, _: &RequestHead<'_>) -> Option<HeaderValue> {
        Some(HeaderValue::from_static("Cookie"))
    }

    /// 401; 400 for a plaintext cookie.
    fn missing_status(&self, _: &RequestHead<'_>) -> StatusCode {
        if self.is_plaintext {
            StatusCode::BAD_REQUEST
        } else {
            StatusCode::UNAUTHORIZED
        }
    }
}

fn raw_values<'a>(headers: &'a HeaderMap, name: &ParamName) -> impl Iterator<Item = &'a [u8]> {
    let lines = headers.get_all(COOKIE).iter();
    let pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    pairs.filter_map(move |pair| {
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        let (found, value) = (pair[..equals].trim_ascii(), pair[equals + 1..].trim_ascii());
        name.matches(found, Plus::Literal).then_some(value)
    })
}

fn unquoted(value: &[u8]) -> &[u8] {
    match value {
        [b'"', inside @ .., b'"'] => inside,
        _ => value,
    }
}
