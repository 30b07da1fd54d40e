//! Certificates that are made at test time.

use std::{fs, path::Path};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};

/// An authority that signs certificates of servers and clients.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, both in PEM.
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        // Another name than that of the certificates: one with the same name would count as signed by itself.
        params
            .distinguished_name
            .push(DnType::CommonName, "authority of a test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, key());
        Self {
            issuer: issuer.expect("a certificate"),
        }
    }

    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Signs a certificate for this host name.
    pub(crate) fn sign(&self, name: &str) -> Identity {
        self.sign_params(params(name))
    }

    /// Signs a certificate that has expired.
    pub(crate) fn sign_expired(&self, name: &str) -> Identity {
        let mut params = params(name);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
        self.sign_params(params)
    }

    fn sign_params(&self, params: CertificateParams) -> Identity {
        let key = key();
        let certificate = params.signed_by(&key, &self.issuer);
        Identity {
            certificate: certificate.expect("a certificate").pem(),
            key: key.serialize_pem(),
        }
    }
}

impl Identity {
    /// Writes `<name>.pem` and `<name>.key`.
    pub(super) fn write(&self, directory: &Path, name: &str) {
        let certificate = directory.join(format!("{name}.pem"));
        fs::write(certificate, &self.certificate).expect("the directory is writable");
        let key = directory.join(format!("{name}.key"));
        fs::write(key, &self.key).expect("the directory is writable");
    }
}

fn params(name: &str) -> CertificateParams {
    CertificateParams::new(vec![name.to_owned()]).expect("a host name")
}

fn key() -> KeyPair {
    KeyPair::generate().expect("a key")
}
