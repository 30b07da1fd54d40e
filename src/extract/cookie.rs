//! Keys from cookies.

use http::{HeaderMap, HeaderValue, StatusCode, header::COOKIE, request::Parts};

use crate::{
    error::Error,
    key::{HashSecret, Key},
};

use super::{
    api_key,
    extracted::Extracted,
    extractor::KeyExtractor,
    named::Name,
    percent::{self, Plus},
};

/// The value of one cookie, hashed as a secret: whoever holds a session's cookie is that session.
///
/// All `Cookie` lines are read, as HTTP/2 may split them. An empty cookie is absent. One that comes more than once, even
/// with the same value, is ambiguous and rejected: frameworks differ in which one they take, so either guess would let a
/// client be counted under a made-up value. Browsers send two cookies of one name where it was set for two paths or
/// domains: set it for one, or name it `__Host-...`, which allows no other. Name and value are percent-decoded and one pair of quotes around the value is left away, as
/// frameworks do: no client gets a second count by writing its cookie in another way.
///
/// The cookie is not checked. A client may make up one with every request: put the layer behind the session's check, or
/// count by address beside it.
///
/// # Examples
///
/// ```
/// use tollgate::extract::{Cookie, KeyExtractor, PeerIp};
///
/// // By session, and who has none by address.
/// let by_session = Cookie::new("session").or_else(PeerIp);
///
/// // Nothing secret: it can be read in Redis.
/// let by_language = Cookie::new("language").plaintext();
/// ```
#[derive(Clone, Debug)]
pub struct Cookie {
    name: Name,
    hash_key: Option<HashSecret>,
    is_clear: bool,
}

impl Cookie {
    /// The cookie of this name; names are told apart by case. What cannot be one (it is a token as RFC 6265 has it) is
    /// reported when the layer is built.
    #[must_use]
    pub fn new(name: impl AsRef<str>) -> Self {
        Self {
            name: Name::new("cookie", name.as_ref()),
            hash_key: None,
            is_clear: false,
        }
    }

    /// Sets the fleet's own hash key, the same on every instance.
    ///
    /// Default: tollgate's constant, which hides cookies that cannot be guessed.
    #[must_use]
    pub fn hash_key(mut self, key: HashSecret) -> Self {
        self.hash_key = Some(key);
        self
    }

    /// Takes the value as it is: for cookies that are no secret.
    ///
    /// Default: hashed.
    #[must_use]
    pub fn plaintext(mut self) -> Self {
        self.is_clear = true;
        self
    }
}

impl KeyExtractor for Cookie {
    fn extract(&self, parts: &Parts) -> Extracted<Key> {
        let raw = Extracted::only(values(&parts.headers, self.name.as_str()));
        raw.and_then(|raw| {
            let decoded = percent::decoded(raw, Plus::Itself);
            let value = unquoted(&decoded);
            let key = || match self.is_clear {
                true => Key::new(value),
                false => api_key::hashed(self.hash_key.as_ref(), value),
            };
            (!value.is_empty()).then(key).into()
        })
    }

    /// `cookie:` and the name.
    fn label(&self) -> &str {
        self.name.label()
    }

    fn validate(&self) -> Result<(), Error> {
        let name = self.name.as_str();
        let is_token = !name.is_empty() && name.bytes().all(is_token_byte);
        let advice = "cookie: take letters, digits, - and _, as in \"session\"";
        self.name.validate(is_token, advice)
    }

    /// `Cookie`, a scheme that no register has: there is none for cookies.
    fn challenge(&self, _: &Parts) -> Option<HeaderValue> {
        Some(HeaderValue::from_static("Cookie"))
    }

    /// 401; 400 for a cookie in clear.
    fn missing_status(&self, _: &Parts) -> StatusCode {
        match self.is_clear {
            true => StatusCode::BAD_REQUEST,
            false => StatusCode::UNAUTHORIZED,
        }
    }
}

/// All raw values of the cookie.
fn values<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a [u8]> {
    let lines = headers.get_all(COOKIE).iter();
    let pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    pairs.filter_map(move |pair| {
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        let (found, value) = (pair[..equals].trim_ascii(), pair[equals + 1..].trim_ascii());
        percent::reads_as(found, Plus::Itself, name).then_some(value)
    })
}

fn unquoted(value: &[u8]) -> &[u8] {
    match value {
        [b'"', inside @ .., b'"'] => inside,
        _ => value,
    }
}

const fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}
