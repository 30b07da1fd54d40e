//! Keys from the bodies of requests.

use std::{borrow::Cow, time::Duration};

use http::{
    HeaderValue,
    header::{CONTENT_ENCODING, CONTENT_TYPE},
};

use crate::{
    error::{Error, ErrorKind},
    key::{HashSecret, Key},
    request::{BodyFault, BodyLimits, RequestHead},
};

use super::{
    caller_id::CallerId,
    extracted::Extracted,
    extractor::KeyExtractor,
    json_pointer::JsonPointer,
    param::{self, ParamName, Plus},
    query,
};

/// One field of a request body, of JSON or of a form: `FromBody::json("/user/email")`.
///
/// The layer reads the body once for all its rules, and hands it to the handler byte for byte. It reads no body of a request
/// that no such rule counts. Rules without it are decided before the body is read, so a client over its limit by address is
/// denied first. The request must have axum's `Body`: elsewhere, put
/// `map_request(|request: Request<_>| request.map(axum::body::Body::new))` outside of the limit.
///
/// Clients choose what they send: join it with an address, or use it in addition to one.
///
/// | body | key |
/// |---|---|
/// | a text, or a whole number | found |
/// | no body, no such field, `null`, or an empty text | absent |
/// | the field comes twice, is a list, an object, a boolean or a fraction, or is in a text that is not valid JSON or UTF-8 | rejected with 400 |
/// | a list where the pointer has an object, since a handler may read its items as the fields | rejected with 400 |
/// | compressed, or with two `Content-Type` headers beside [`or_form`](Self::or_form) | rejected with 400 |
/// | larger than the limit, or too slow | rejected with 413 or 408 |
///
/// The body is read as it was sent. Put a layer that decompresses it outside of the limit. Let the handler read the same body: for
/// `GET`, axum's `Form` reads the query instead, so a route with a form takes `POST` alone.
///
/// # Examples
///
/// Failed logins by name and address:
///
/// ```
/// use tollgate::{Policy, Quota, extract::{FromBody, KeyExtractor, PeerIp}};
///
/// let name = FromBody::json("/email").or_form("email").ignore_case();
/// let login = Policy::new("login", Quota::per_minute(5)).key(name.and(PeerIp)).count_failures();
/// ```
#[derive(Clone, Debug)]
pub struct FromBody {
    pointer: Option<JsonPointer>,
    form: Option<ParamName>,
    limits: BodyLimits,
    label: String,
    ignores_case: bool,
    is_hashed: bool,
    hash_secret: Option<HashSecret>,
    unreadable_is_absent: bool,
}

impl FromBody {
    /// Reads the field of a JSON document at this pointer (RFC 6901), such as `/user/email` or `/items/0/id`.
    ///
    /// `build()` fails for a text that is not a pointer.
    #[must_use]
    pub fn json(pointer: &str) -> Self {
        Self {
            pointer: Some(JsonPointer::new(pointer)),
            ..Self::new(pointer.trim_start_matches('/').replace('/', "."))
        }
    }

    /// Reads the field of this name in a form (`application/x-www-form-urlencoded`).
    #[must_use]
    pub fn form(name: &str) -> Self {
        Self::new(name.to_owned()).or_form(name)
    }

    /// Reads this field instead if the `Content-Type` of the request is that of a form.
    #[must_use]
    pub fn or_form(mut self, name: &str) -> Self {
        self.form = Some(query::param_name(name));
        self
    }

    /// Sets the most bytes of the body. A larger one gets 413.
    ///
    /// Default: 16 KiB.
    #[must_use]
    pub const fn limit(mut self, bytes: usize) -> Self {
        self.limits = self.limits.bytes(bytes);
        self
    }

    /// Sets the time in which the body must arrive. A slower one gets 408.
    ///
    /// Default: 5 s.
    #[must_use]
    pub const fn within(mut self, time: Duration) -> Self {
        self.limits = self.limits.within(time);
        self
    }

    /// Makes one key of all spellings in upper and lower case, without space around them.
    ///
    /// Default: each spelling is a key. Use it where the handler does not distinguish them, as with most addresses of mail:
    /// otherwise `Ada@` and `ada@` have a count each.
    #[must_use]
    pub const fn ignore_case(mut self) -> Self {
        self.ignores_case = true;
        self
    }

    /// Hashes the value, so that a store and a log never contain it.
    ///
    /// Default: the value is readable in Redis.
    #[must_use]
    pub const fn hashed(mut self) -> Self {
        self.is_hashed = true;
        self
    }

    /// Hashes the value with this secret, which must be the same on every instance.
    ///
    /// Default: a public constant. See [`HashSecret`].
    #[must_use]
    pub const fn hash_secret(mut self, secret: HashSecret) -> Self {
        (self.is_hashed, self.hash_secret) = (true, Some(secret));
        self
    }

    /// Handles a body that cannot be read as a request without a key.
    ///
    /// Default: it is rejected. With [`OnMissingKey::Skip`](crate::rules::OnMissingKey::Skip), a client can then get around the
    /// rule by a body that is too large or malformed, if the handler accepts that.
    #[must_use]
    pub const fn unreadable_is_absent(mut self) -> Self {
        self.unreadable_is_absent = true;
        self
    }

    fn new(label: String) -> Self {
        Self {
            pointer: None,
            form: None,
            limits: BodyLimits::default(),
            label: format!("body:{label}"),
            ignores_case: false,
            is_hashed: false,
            hash_secret: None,
            unreadable_is_absent: false,
        }
    }

    /// Returns the whole number in the field; `None` without the field.
    ///
    /// # Errors
    ///
    /// The reason why it cannot be read: it is no whole number, or there are two.
    pub(crate) fn number(&self, head: &RequestHead<'_>) -> Result<Option<u64>, BodyFault> {
        let number = self.text(head).and_then(|found| match found {
            Extracted::Found(text) => text.parse().map(Some).map_err(|_| BodyFault::Malformed),
            Extracted::Absent => Ok(None),
            Extracted::Ambiguous => Err(BodyFault::Malformed),
        });
        match number {
            Err(fault) if self.is_absent(fault) => Ok(None),
            number => number,
        }
    }

    /// Whether a body with this fault is handled as one without the field.
    fn is_absent(&self, fault: BodyFault) -> bool {
        self.unreadable_is_absent && fault != BodyFault::Unsupported
    }

    fn read(&self, head: &RequestHead<'_>) -> Result<Extracted<Key>, BodyFault> {
        let text = self.text(head)?;
        Ok(text.and_then(|text| self.key(&text)))
    }

    /// Returns what is in the field.
    fn text(&self, head: &RequestHead<'_>) -> Result<Extracted<String>, BodyFault> {
        let body = head.body(self.limits)?;
        if body.is_empty() {
            return Ok(Extracted::Absent);
        }
        if is_encoded(head) {
            return Err(BodyFault::Malformed);
        }
        let in_json = |pointer: &JsonPointer| pointer.find(body).map_err(|_| BodyFault::Malformed);
        match (&self.pointer, &self.form) {
            (Some(pointer), None) => in_json(pointer),
            (Some(pointer), Some(_)) if !is_form(head)? => in_json(pointer),
            (_, Some(name)) => {
                let text = std::str::from_utf8(body).map_err(|_| BodyFault::Malformed)?;
                let value = Extracted::single(query::values_in(text, name));
                let decoded = value.map(|value| param::decode(value.as_bytes(), Plus::Space));
                Ok(decoded.map(|value| String::from_utf8_lossy(&value).into_owned()))
            }
            (None, None) => Ok(Extracted::Absent),
        }
    }

    fn key(&self, text: &str) -> Extracted<Key> {
        let text = if self.ignores_case {
            Cow::Owned(text.trim().to_lowercase())
        } else {
            Cow::Borrowed(text)
        };
        match &*text {
            "" => Extracted::Absent,
            text if self.is_hashed => Extracted::Found(match &self.hash_secret {
                Some(secret) => Key::secret_with(secret, text),
                None => Key::secret(text),
            }),
            text => Extracted::Found(Key::new(text)),
        }
    }
}

impl KeyExtractor for FromBody {
    fn extract(&self, head: &RequestHead<'_>) -> Extracted<Key> {
        match self.read(head) {
            Ok(found) => found,
            Err(fault) if self.is_absent(fault) => Extracted::Absent,
            Err(_) => Extracted::Ambiguous,
        }
    }

    fn body_limits(&self) -> Option<BodyLimits> {
        Some(self.limits)
    }

    fn body_fault(&self, head: &RequestHead<'_>) -> Option<BodyFault> {
        let fault = self.read(head).err();
        fault.filter(|fault| !self.is_absent(*fault))
    }

    fn keys_of(&self, caller: &CallerId<'_>) -> Vec<Key> {
        let key = caller.value().and_then(|text| self.key(text).found());
        Vec::from_iter(key)
    }

    /// `body:` followed by the name of the field.
    fn label(&self) -> &str {
        &self.label
    }

    fn validate(&self) -> Result<(), Error> {
        if let Some(pointer) = &self.pointer {
            pointer.validate()?;
        }
        if let Some(name) = &self.form {
            let kind = "field of a form: use a name such as \"email\"";
            name.validate(!name.as_str().is_empty(), kind)?;
        }
        if self.limits.most_bytes() == 0 || self.limits.time().is_zero() {
            let message = "a limit of 0 bytes, or a time of zero: no body could be read; the defaults are 16 KiB and 5 s";
            return Err(Error::new(ErrorKind::InvalidConfig, message));
        }
        Ok(())
    }
}

/// Returns whether the body is compressed. What follows a compressed form could be read as another one.
fn is_encoded(head: &RequestHead<'_>) -> bool {
    let mut encodings = head.headers.get_all(CONTENT_ENCODING).iter();
    encodings.any(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

/// Returns whether the request has a form. Parameters of the type, such as the character set, do not matter.
///
/// # Errors
///
/// A request with several types, or one that only starts as that of a form, which is enough for axum's `Form`: the handler may take
/// another one, and one body can be both a form and JSON.
fn is_form(head: &RequestHead<'_>) -> Result<bool, BodyFault> {
    let mut values = head.headers.get_all(CONTENT_TYPE).iter();
    let first = values.next().map_or(&b""[..], HeaderValue::as_bytes);
    let essence = first.split(|byte| *byte == b';').next().unwrap_or(first);
    if values.next().is_some() || essence.contains(&b',') {
        return Err(BodyFault::Malformed);
    }
    let form = b"application/x-www-form-urlencoded";
    let essence = essence.trim_ascii();
    match essence.split_at_checked(form.len()) {
        Some((start, rest)) if start.eq_ignore_ascii_case(form) => {
            rest.is_empty().then_some(true).ok_or(BodyFault::Malformed)
        }
        _ => Ok(false),
    }
}
