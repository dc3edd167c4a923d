//! A server behind TLS, with a certificate that it has signed itself.

use std::net::TcpListener;
use std::sync::Arc;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use super::server::Server;

/// Passes connections on to `server`; returns its URL, and its certificate in PEM.
pub fn encrypted(server: &Server) -> (String, String) {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(default_provider().into()).with_safe_default_protocol_versions();
    let config = config.unwrap().with_no_client_auth().with_single_cert(vec![cert.der().clone()], key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let plain = server.url.trim_start_matches("http://").to_string();
    let pass_on = async move || {
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        loop {
            let (stream, acceptor, plain) = (listener.accept().await.unwrap().0, acceptor.clone(), plain.clone());
            // A client that does not trust the certificate closes the connection.
            tokio::spawn(async move {
                let mut near = acceptor.accept(stream).await?;
                tokio::io::copy_bidirectional(&mut near, &mut TcpStream::connect(plain).await?).await
            });
        }
    };
    std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(pass_on())
    });
    (url, cert.pem())
}
