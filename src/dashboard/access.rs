//! The rights of a request to the dashboard.

use std::sync::Arc;

/// The rights of one request, which the application's own authentication puts into the request's extensions.
///
/// Only counts with [`access_by_extension`](super::DashboardBuilder::access_by_extension). A request without it, and
/// without a valid token, is refused.
///
/// # Examples
///
/// ```
/// use axum::{extract::Request, middleware::Next, response::Response};
/// use tollgate::dashboard::Access;
///
/// #[derive(Clone)]
/// struct User { name: String, is_admin: bool }
///
/// async fn grant(mut request: Request, next: Next) -> Response {
///     if let Some(user) = request.extensions().get::<User>().cloned() {
///         let access = if user.is_admin { Access::read_write() } else { Access::read_only() };
///         request.extensions_mut().insert(access.operator(&user.name));
///     }
///     next.run(request).await
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    can_write: bool,
    operator: Option<Arc<str>>,
}

impl Access {
    /// Allows the request to see everything, and to change nothing.
    #[must_use]
    pub const fn read_only() -> Self {
        Self {
            can_write: false,
            operator: None,
        }
    }

    /// Allows the request to change modes, rules and keys, too.
    #[must_use]
    pub const fn read_write() -> Self {
        Self {
            can_write: true,
            operator: None,
        }
    }

    /// Sets the name of the operator. The page, the log events of changes, and the versions of rules show it.
    ///
    /// Default: no name. Longer names are cut after 64 characters, and control characters are left out.
    #[must_use]
    pub fn operator(mut self, name: &str) -> Self {
        let shown = name.chars().filter(|character| !character.is_control());
        let name: String = shown.take(MAX_NAME).collect();
        self.operator = Some(name.into());
        self
    }

    /// Returns whether the request may change something.
    #[must_use]
    pub fn can_write(&self) -> bool {
        self.can_write
    }

    /// Returns the name of the operator.
    #[must_use]
    pub fn operator_name(&self) -> Option<&str> {
        self.operator.as_deref()
    }
}

/// In characters.
const MAX_NAME: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_an_operator_cannot_forge_a_line_of_the_log() {
        let access = Access::read_write().operator("ada\nINFO forged\u{1b}[31m");
        assert_eq!(access.operator_name(), Some("adaINFO forged[31m"));
        let long = Access::read_only().operator(&"x".repeat(1_000));
        assert_eq!(long.operator_name().map(str::len), Some(MAX_NAME));
    }
}
