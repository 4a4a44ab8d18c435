//! TLS of the HTTP clients of tools: the authorities of this machine are read at the first handshake, once.
//!
//! On many systems they are more than a hundred files. Clients of servers on the same machine need none.
//!
//! Doc: execution.md#mcp-servers

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use rustls_platform_verifier::Verifier;

/// Chooses the TLS library of this process, once.
pub(crate) fn install() {
    // An error means that another provider is already installed, which is equally suitable.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Returns the builder of a client that trusts the authorities of this machine.
pub(crate) fn client() -> reqwest::ClientBuilder {
    install();
    // `dangerous` is the word of rustls for any verifier that it does not have itself. This one asks the
    // verifier of the platform.
    let mut config = ClientConfig::builder()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(MachineAuthorities))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    reqwest::Client::builder().tls_backend_preconfigured(config)
}

/// Verifies certificates by the authorities of this machine.
#[derive(Debug)]
struct MachineAuthorities;

/// Returns the verifier of the platform. If its authorities cannot be read, the next handshake tries again.
fn verifier() -> Result<&'static Verifier, Error> {
    static VERIFIER: OnceLock<Verifier> = OnceLock::new();
    static READING: Mutex<()> = Mutex::new(());
    if let Some(known) = VERIFIER.get() {
        return Ok(known);
    }
    let _reading = READING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = VERIFIER.get() {
        return Ok(known);
    }
    let made = Verifier::new(provider()?)?;
    Ok(VERIFIER.get_or_init(|| made))
}

fn provider() -> Result<Arc<CryptoProvider>, Error> {
    let installed = CryptoProvider::get_default().cloned();
    installed.ok_or_else(|| Error::General("no TLS library is installed".to_owned()))
}

impl ServerCertVerifier for MachineAuthorities {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        verifier()?.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verifier()?.verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verifier()?.verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let provider = provider();
        let schemes =
            provider.map(|provider| provider.signature_verification_algorithms.supported_schemes());
        schemes.unwrap_or_default()
    }
}
