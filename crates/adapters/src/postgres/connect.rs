//! The way to a PostgreSQL server: over TLS where the server has it, with certificates that are checked.

use super::DatabaseError;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

/// How long a server may take to answer at all, if the address does not say.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// What the server's own lists call us, if the address does not say.
const NAME: &str = "holdfast";

/// What moves the bytes of a connection, as long as it is polled.
pub(crate) type Driver = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// A database that can be connected to.
#[derive(Clone)]
pub struct Database {
    config: Config,
    tls: MakeRustlsConnect,
}

impl Database {
    /// The database at `address`: `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, or PostgreSQL's own `host=… user=…`. The
    /// server's certificate must be signed by an authority that this machine trusts, or by one in the PEM file
    /// `authorities`. Without TLS on the server there is none, unless the address says `sslmode=require`.
    ///
    /// # Errors
    /// If the address or the file makes no sense.
    pub fn at(address: &str, authorities: Option<&Path>) -> Result<Self, DatabaseError> {
        // The parser names the option that it does not know, never a value.
        let mut config: Config =
            address.parse().map_err(|error| DatabaseError::Address(DatabaseError::said(&error)))?;
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_WITHIN);
        }
        if config.get_application_name().is_none() {
            config.application_name(NAME);
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| DatabaseError::Unreachable(error.to_string()))?;
        let builder = match authorities {
            Some(file) => builder.with_root_certificates(roots(file)?),
            None => {
                let verified = builder.with_platform_verifier();
                verified.map_err(|error| DatabaseError::Unreachable(error.to_string()))?
            }
        };
        Ok(Self { config, tls: MakeRustlsConnect::new(builder.with_no_client_auth()) })
    }

    /// Connects.
    ///
    /// # Errors
    /// If nobody answers, or not to us.
    pub async fn connect(&self) -> Result<Client, DatabaseError> {
        let (client, driver) = self.open().await?;
        // May safely die: it ends with its client, and errors reach the client's own calls.
        tokio::spawn(driver);
        Ok(client)
    }

    /// Connects, and leaves it to the caller to poll what moves the bytes.
    pub(crate) async fn open(&self) -> Result<(Client, Driver), DatabaseError> {
        let connected = self.config.connect(self.tls.clone()).await;
        connected.map_err(|error| DatabaseError::Unreachable(DatabaseError::said(&error)))
    }
}

fn roots(file: &Path) -> Result<RootCertStore, DatabaseError> {
    let unusable = |why: String| DatabaseError::Certificates { file: file.display().to_string(), why };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| unusable(error.to_string()))? {
        let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
        roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
    }
    if roots.is_empty() { Err(unusable("there is none in it".to_owned())) } else { Ok(roots) }
}
