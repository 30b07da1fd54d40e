//! TLS by rustls.
//!
//! The configuration is made once per store, so certificates are read and parsed once, and sessions are resumed. It names
//! its cryptography explicitly and installs nothing for the process.
//!
//! # Why ring?
//!
//! rustls needs a provider of cryptography. The store uses the one that the application has installed for the process, otherwise
//! ring, by name. ring needs a C compiler, but neither CMake nor Go. Providers without C exist: one is an alpha release, and one
//! runs only on recent processors. `tls-rustls-no-provider` is for applications that install another provider and do not want to
//! compile ring, or that rely on rustls to find the only compiled one: with two, rustls can no longer choose.
//!
//! No setting skips the verification of certificates. `TlsConfig::ca_certificates` is for a custom authority, and
//! `TlsConfig::server_name` for a certificate with another name.

use std::{fmt, io, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, Error as TlsError, RootCertStore,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::error::{Error, ErrorKind};

/// Settings of TLS connections. Certificates are always verified.
///
/// The defaults are for servers whose certificate a public authority signed: no own authority, no client certificate.
/// Formatting it shows no certificate and no key. A changed certificate needs a new store. A server that does not use TLS
/// on the port is often noticed only by the connect timeout: it waits for the end of a command.
///
/// # Examples
///
/// ```no_run
/// use tollgate::remote::{RedisStore, TlsConfig};
///
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let tls = TlsConfig::new()
///     .ca_certificates(std::fs::read("/etc/redis/ca.pem")?)
///     .client_certificate(std::fs::read("client.pem")?, std::fs::read("client.key")?);
/// let store = RedisStore::builder("rediss://cache.internal:6380").tls(tls).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct TlsConfig {
    ca: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
    server_name: Option<String>,
}

impl TlsConfig {
    /// Returns the default settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the authorities that may sign the server's certificate: one or more certificates in PEM.
    ///
    /// Default: those that the system trusts. These replace them.
    pub fn ca_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(pem.into());
        self
    }

    /// Sets the certificate of this client, with its chain, and its private key, both in PEM.
    ///
    /// Default: none. Redis needs one by default, unless `tls-auth-clients` is `no` or `optional`.
    pub fn client_certificate(
        mut self,
        chain_pem: impl Into<Vec<u8>>,
        key_pem: impl Into<Vec<u8>>,
    ) -> Self {
        self.identity = Some((chain_pem.into(), key_pem.into()));
        self
    }

    /// Sets the name that the server's certificate must contain.
    ///
    /// Default: the host that the store connects to. Set it if that is an IP address that the certificate does not
    /// contain: behind a tunnel, or if Sentinel returns addresses and not names.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Reads the certificates.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if one cannot be used.
    pub(in crate::remote) fn build(&self) -> Result<Tls, Error> {
        let provider = provider()?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| {
                invalid(
                    "the cryptography provider of rustls lacks TLS 1.2 or 1.3",
                    error,
                )
            })?
            .with_root_certificates(self.roots()?);
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = certificates(chain)?;
                let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| {
                    invalid("the key of the client certificate is not PEM", error)
                })?;
                builder.with_client_auth_cert(chain, key).map_err(|error| {
                    invalid("the client certificate and its key cannot be used", error)
                })?
            }
        };
        let server_name = self.server_name.clone().map(ServerName::try_from);
        let server_name = server_name.transpose().map_err(|error| {
            invalid(
                "the server name is neither a host name nor an IP address",
                error,
            )
        })?;
        Ok(Tls {
            connector: TlsConnector::from(Arc::new(config)),
            server_name,
        })
    }

    fn roots(&self) -> Result<RootCertStore, Error> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(pem) => {
                for certificate in certificates(pem)? {
                    roots
                        .add(certificate)
                        .map_err(|error| invalid("a CA certificate cannot be used", error))?;
                }
            }
            None => {
                // Some systems contain certificates that cannot be parsed: the others are enough.
                let found = rustls_native_certs::load_native_certs();
                roots.add_parsable_certificates(found.certs);
            }
        }
        if roots.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "there is no CA certificate: pass one to TlsConfig::ca_certificates, or install those of the system \
                 (ca-certificates)",
            ));
        }
        Ok(roots)
    }
}

impl fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConfig")
            .field("has_ca", &self.ca.is_some())
            .field("has_client_certificate", &self.identity.is_some())
            .field("server_name", &self.server_name)
            .finish()
    }
}

/// Returns the provider that the application installed, or `ring`.
fn provider() -> Result<Arc<CryptoProvider>, Error> {
    if let Some(installed) = CryptoProvider::get_default() {
        return Ok(Arc::clone(installed));
    }
    #[cfg(feature = "tls-rustls")]
    return Ok(Arc::new(rustls::crypto::ring::default_provider()));
    #[cfg(not(feature = "tls-rustls"))]
    Err(Error::new(
        ErrorKind::InvalidConfig,
        "rustls has no cryptography provider: install one by CryptoProvider::install_default, or enable the feature \
         tls-rustls of tollgate",
    ))
}

/// Returns the certificates in PEM text.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let certificates =
        certificates.map_err(|error| invalid("a certificate is not valid PEM", error))?;
    if certificates.is_empty() {
        return Err(Error::new(
            ErrorKind::InvalidConfig,
            "a PEM text contains no certificate: it must have a line with BEGIN CERTIFICATE",
        ));
    }
    Ok(certificates)
}

fn invalid(
    message: &'static str,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Error {
    Error::new(ErrorKind::InvalidConfig, message).with_source(source)
}

// === Tls ===

/// TLS, ready for connections.
#[derive(Clone)]
pub(in crate::remote) struct Tls {
    connector: TlsConnector,
    server_name: Option<ServerName<'static>>,
}

impl Tls {
    /// Does the TLS handshake with a host.
    pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        host: &str,
        stream: S,
    ) -> io::Result<TlsStream<S>> {
        let name = match &self.server_name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned())
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?,
        };
        self.connector.connect(name, stream).await
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("server_name", &self.server_name)
            .finish_non_exhaustive()
    }
}

/// Returns what to do about a failed TLS handshake; `None` if the error is of another kind.
pub(super) fn advice(error: &io::Error) -> Option<&'static str> {
    let error = error.get_ref()?.downcast_ref()?;
    Some(match error {
        TlsError::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => "its certificate has expired: renew it",
        TlsError::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => "its certificate is not valid yet: check the clocks",
        TlsError::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => {
            "its certificate is for another name: connect by that name, or set TlsConfig::server_name"
        }
        // An authority of the same name with another key has a bad signature.
        TlsError::InvalidCertificate(
            CertificateError::BadSignature | CertificateError::UnknownIssuer,
        ) => {
            "no trusted authority signed its certificate: pass the authority to TlsConfig::ca_certificates"
        }
        TlsError::InvalidCertificate(_) => "its certificate is not valid",
        TlsError::InvalidMessage(_) => "it does not use TLS on this port",
        TlsError::AlertReceived(_) => {
            "it refused the TLS handshake, perhaps for the client certificate"
        }
        _ => "the TLS handshake failed",
    })
}
