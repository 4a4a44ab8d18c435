//! Certificates of the tests' own, and a client that trusts one of them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rcgen::CertifiedKey;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::waiting::CEILING;

/// A certificate for the loopback address and `gateway.example`, with its key.
pub struct Certificate {
    /// The certificate in PEM.
    pub cert: String,
    /// The key in PEM.
    pub key: String,
    der: CertificateDer<'static>,
}

impl Certificate {
    /// Makes a certificate.
    ///
    /// # Panics
    /// If the machine has no random numbers.
    pub fn new() -> Self {
        let names = vec!["127.0.0.1".to_owned(), "gateway.example".to_owned()];
        let CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(names).expect("a certificate");
        Self { cert: cert.pem(), key: signing_key.serialize_pem(), der: cert.der().clone() }
    }

    /// Connects to an address, which must have this certificate.
    ///
    /// # Errors
    /// If the handshake fails.
    pub fn connect(
        &self,
        address: &str,
        protocols: &[&str],
    ) -> std::io::Result<StreamOwned<ClientConnection, TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone()).expect("a root");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        let name = ServerName::try_from("127.0.0.1").expect("a name");
        let connection =
            ClientConnection::new(Arc::new(config), name).map_err(std::io::Error::other)?;
        let socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(CEILING))?;
        let mut stream = StreamOwned::new(connection, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(stream)
    }

    /// Sends a GET request; returns its answer.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn get(&self, address: &str, path: &str, headers: &str) -> std::io::Result<String> {
        let mut stream = self.connect(address, &["http/1.1"])?;
        write!(stream, "GET {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }
}

impl Default for Certificate {
    fn default() -> Self {
        Self::new()
    }
}
