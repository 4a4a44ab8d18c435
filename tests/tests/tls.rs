//! Tests the real gateway with TLS of its own.
//!
//! Doc: front-doors.md#tls

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Instant;

use toolbooth_tests::stage::Stage;
use toolbooth_tests::tls::Certificate;
use toolbooth_tests::waiting::CEILING;
use toolbooth_tests::{Place, RunningGateway};

/// Writes a certificate and its key.
fn write(place: &Place, certificate: &Certificate) {
    place.write("cert.pem", &certificate.cert).write("key.pem", &certificate.key);
}

fn place(certificate: &Certificate, more: &str) -> Place {
    let place = Place::new();
    place.write(
        "toolbooth.toml",
        &format!("[http]\ntls = {{ cert = \"cert.pem\", key = \"key.pem\" }}\n{more}"),
    );
    write(&place, certificate);
    place
}

/// Waits until new connections get this certificate.
fn until(certificate: &Certificate, gateway: &RunningGateway) {
    let began = Instant::now();
    while certificate.connect(&gateway.address, &[]).is_err() {
        assert!(began.elapsed() < CEILING, "the certificate is not used");
    }
}

/// Waits until the gateway has no connection.
fn until_closed(gateway: &RunningGateway) {
    toolbooth_tests::waiting::until("the connection is closed", || gateway.connections() == 0);
}

#[test]
fn the_door_speaks_tls_and_nothing_else() {
    let certificate = Certificate::new();
    let place = place(&certificate, "hosts = [\"gateway.example\"]\nheader_timeout_ms = 500\n");
    let gateway = place.serve();
    let host = format!("Host: {}\r\n", gateway.address);
    let get = |headers: &str| certificate.get(&gateway.address, "/v1/tools", headers);
    // The user of the gateway is `local` over TLS too.
    let answer = get(&host).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("calculator"), "{answer}");
    let named = get("Host: gateway.example\r\n").expect("an answer");
    assert!(named.starts_with("HTTP/1.1 200"), "{named}");
    // Its own pages have https origins.
    let port = gateway.address.rsplit(':').next().expect("a port");
    for (origin, status) in [("https", "200"), ("http", "403")] {
        let headers = format!("{host}Origin: {origin}://127.0.0.1:{port}\r\n");
        let answer = get(&headers).expect("an answer");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{origin}: {answer}");
    }
    let foreign = get("Host: evil.example\r\n").expect("an answer");
    assert!(foreign.starts_with("HTTP/1.1 403") && foreign.contains("hosts"), "{foreign}");
    // HTTP/2 is not spoken, so it is not negotiated; nor is plain HTTP answered.
    assert!(certificate.connect(&gateway.address, &["h2"]).is_err());
    let mut plain = TcpStream::connect(&gateway.address).expect("connects");
    plain.set_read_timeout(Some(CEILING)).expect("is set");
    // The gateway may close after the first bytes.
    let _ = plain.write_all(format!("GET /v1/tools HTTP/1.1\r\n{host}\r\n").as_bytes());
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP/1.1"), "{answer:?}");
    // A handshake that does not go on is closed in time, and so is a head after it.
    let mut silent = TcpStream::connect(&gateway.address).expect("connects");
    silent.set_read_timeout(Some(CEILING)).expect("is set");
    assert_eq!(silent.read(&mut [0]).expect("it is closed"), 0);
    let mut half = certificate.connect(&gateway.address, &[]).expect("a handshake");
    half.write_all(b"GET / HTTP/1.1\r\nHo").expect("is read");
    let mut answer = String::new();
    let _ = half.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert_eq!(gateway.stop().0, Some(0));
}

#[test]
fn a_certificate_is_replaced_while_the_gateway_runs() {
    let (first, second, third) = (Certificate::new(), Certificate::new(), Certificate::new());
    let place = place(&first, "");
    let gateway = place.serve();
    let mut open = first.connect(&gateway.address, &[]).expect("a handshake");
    assert!(second.connect(&gateway.address, &[]).is_err());
    write(&place, &second);
    until(&second, &gateway);
    assert!(first.connect(&gateway.address, &[]).is_err());
    // A pair that does not fit is refused, and the last good one stays.
    let refused = "the certificate is refused, the last good one stays";
    for (times, cert) in [(1, third.cert.as_str()), (2, "nothing")] {
        place.write("cert.pem", cert);
        gateway.signal("HUP");
        gateway.until_said(refused, times);
        assert!(second.connect(&gateway.address, &[]).is_ok());
        assert!(third.connect(&gateway.address, &[]).is_err());
    }
    write(&place, &third);
    gateway.signal("HUP");
    until(&third, &gateway);
    // A connection keeps the certificate with which it began.
    write!(open, "GET /healthz HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", gateway.address)
        .expect("is read");
    let mut answer = String::new();
    let _ = open.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    gateway.stop();
}

#[test]
fn files_that_are_no_certificate_are_refused_at_the_start() {
    let (one, other) = (Certificate::new(), Certificate::new());
    for (cert, key, what) in [
        (Some(one.cert.as_str()), None, "key.pem"),
        (None, Some(one.key.as_str()), "cert.pem"),
        (Some(""), Some(&one.key), "certificate"),
        (Some(&one.key), Some(&one.key), "certificate"),
        (Some(&one.cert), Some(&one.cert), "private key"),
        (Some(&one.cert), Some(&other.key), "cannot be used"),
    ] {
        let place = place(&one, "");
        for (name, text) in [("cert.pem", cert), ("key.pem", key)] {
            match text {
                Some(text) => drop(place.write(name, text)),
                None => std::fs::remove_file(place.path().join(name)).expect("is removed"),
            }
        }
        let refused = place.run(&["serve", "--http", "127.0.0.1:0"]);
        let text = String::from_utf8_lossy(&refused.stderr);
        assert!(refused.status.code() == Some(2) && text.contains(what), "{what}: {text}");
    }
}

#[test]
fn a_client_that_reads_slowly_gets_everything_and_one_that_does_not_is_closed() {
    const LENGTH: usize = 15_000_000;
    let certificate = Certificate::new();
    let place = Place::new();
    let stage = Stage::new(&place);
    let settings = format!(
        "[http]\ntls = {{ cert = \"cert.pem\", key = \"key.pem\" }}\nwrite_timeout_ms = 700\n\
         [proxy]\nresult_bytes_max = 100000000\n[results]\ninline_bytes = 0\n\
         [lock]\nmode = \"off\"\n{}",
        stage.settings()
    );
    place.write("toolbooth.toml", &settings);
    write(&place, &certificate);
    let gateway = place.serve();
    let body = format!("{{\"toolId\":\"stage.large\",\"args\":{{\"length\":{LENGTH}}}}}");
    let begin = || {
        let mut stream = certificate.connect(&gateway.address, &[]).expect("a handshake");
        write!(
            stream,
            "POST /v1/calls HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
            gateway.address,
            body.len()
        )
        .expect("is read");
        let mut first = [0; 1_024];
        let read = stream.read(&mut first).expect("an answer");
        let head = String::from_utf8_lossy(&first[..read]).into_owned();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        stream
    };
    // Each pause is shorter than the time, and all of them together are longer.
    let (mut slow, mut all, mut piece) = (begin(), 1_024, vec![0; 1 << 20]);
    let began = Instant::now();
    let mut paused = 0;
    loop {
        let read = slow.read(&mut piece).expect("more of the answer");
        if read == 0 {
            break;
        }
        all += read;
        if all / (LENGTH / 10) > paused {
            paused += 1;
            std::thread::sleep(std::time::Duration::from_millis(150));
        }
    }
    assert!(all > LENGTH, "{all} bytes");
    assert!(began.elapsed().as_millis() > 700, "it was slow");
    // One that reads nothing more: the connection ends before the answer does.
    let mut silent = begin();
    until_closed(&gateway);
    let mut rest = 0;
    while let Ok(read @ 1..) = silent.read(&mut piece) {
        rest += read;
    }
    assert!(rest < LENGTH, "{rest} bytes");
}

#[test]
fn servers_are_trusted_by_the_authorities_of_the_machine() {
    let (own, other) = (Certificate::new(), Certificate::new());
    let door = place(&own, "");
    let gateway = door.serve();
    for (authority, is_trusted) in [(&own, true), (&other, false)] {
        let place = Place::new();
        let file = place.path().join("authority.pem");
        let place = place.env("SSL_CERT_FILE", file.to_str().expect("a path"));
        let settings = format!(
            "[discovery]\nnew_tools = \"allow\"\n[servers.up]\nurl = \"https://{}/mcp\"\n",
            gateway.address
        );
        place.write("authority.pem", &authority.cert).write("toolbooth.toml", &settings);
        let arguments = ["call", "up.calculator", "--args", r#"{"expression":"2+2"}"#];
        let called = place.run(&arguments);
        let (text, told) =
            (String::from_utf8_lossy(&called.stdout), String::from_utf8_lossy(&called.stderr));
        assert_eq!(called.status.success(), is_trusted, "{text}\n{told}");
        assert_eq!(told.contains("certificate"), !is_trusted, "{told}");
    }
    // Without any authority, servers without TLS are reached.
    let plain = Place::new();
    let behind = plain.serve();
    let place = Place::new();
    let empty = place.path().join("empty");
    std::fs::create_dir(&empty).expect("is made");
    let (file, folder) = (empty.join("nothing.pem"), empty.clone());
    let place = place
        .env("SSL_CERT_FILE", file.to_str().expect("a path"))
        .env("SSL_CERT_DIR", folder.to_str().expect("a path"));
    let settings = format!(
        "[discovery]\nnew_tools = \"allow\"\n[servers.up]\nurl = \"https://{}/mcp\"\n\
         [servers.plain]\nurl = \"http://{}/mcp\"\n",
        gateway.address, behind.address
    );
    place.write("toolbooth.toml", &settings);
    for (tool, is_reached) in [("plain.calculator", true), ("up.calculator", false)] {
        let called = place.run(&["call", tool, "--args", r#"{"expression":"2+2"}"#]);
        let told = String::from_utf8_lossy(&called.stderr);
        assert_eq!(called.status.success(), is_reached, "{tool}: {told}");
    }
    behind.stop();
    gateway.stop();
}
