//! Tests access tokens of an OAuth issuer at the real gateway: forged ones, scopes, and the official
//! clients' own OAuth code.
//!
//! Path: 1. Doc: front-doors.md#access-tokens

use std::io::Read as _;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};
use toolbooth_tests::issuer::{Issuer, now};
use toolbooth_tests::waiting::{CEILING, output_of};
use toolbooth_tests::{Place, RunningGateway, exchange, repository, request, set_up, target};

const CALL: &str = r#"{"toolId":"calculator","args":{"expression":"6*7"}}"#;

/// Starts a gateway that accepts the tokens of an issuer, with more settings of `[auth]`.
fn gateway(place: &Place, issuer: &Issuer, auth: &str) -> RunningGateway {
    let text = format!(
        "[auth]\n{auth}\n[auth.issuers.own]\nissuer = \"{}\"\ngroups_claim = \"groups\"\n\
         [toolsets.work]\ntools = [\"calculator\"]\n\
         [callers.team]\nmatch = [\"group:own/team\"]\ntools = [\"calculator\"]\ngrants = [\"*\"]\n\
         [callers.bob]\nmatch = [\"jwt:{}#bob\"]\ntools = [\"calculator\"]\ngrants = [\"*\"]\n",
        issuer.url, issuer.url
    );
    place.write("toolbooth.toml", &text);
    place.serve()
}

fn events(place: &Place) -> Vec<Value> {
    crate::callers::events(place, "AUTH_DENIED")
}

#[test]
fn a_token_names_its_subject_with_groups_on_every_door() {
    let (place, issuer) = (Place::new(), Issuer::start());
    let gateway = gateway(&place, &issuer, "");
    let mut claims = issuer.claims(&gateway.url());
    let bob = issuer.token(&claims);
    assert_eq!(gateway.ask_as(&bob, "POST", "/v1/calls", CALL).0, 200);
    claims["sub"] = "eve".into();
    let eve = issuer.token(&claims);
    assert_eq!(gateway.ask_as(&eve, "POST", "/v1/calls", CALL).0, 404, "eve has no rights");
    claims["groups"] = json!(["team", "other"]);
    let member = issuer.token(&claims);
    // An asynchronous call runs with the groups of its caller.
    let headers =
        [("Authorization", format!("Bearer {member}")), ("Prefer", "respond-async".into())];
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, text)| (*name, &**text)).collect();
    let (status, queued) =
        request(&gateway.address, "POST", "/v1/calls", CALL, &headers).expect("an answer");
    assert_eq!(status, 202, "{queued}");
    let id = queued["callId"].as_str().expect("an id");
    let began = Instant::now();
    loop {
        let (_, call) = gateway.ask_as(&member, "GET", &format!("/v1/calls/{id}"), "");
        if call["result"]["status"] == "succeeded" {
            break;
        }
        assert!(began.elapsed() < CEILING, "the call has not run: {call}");
    }
    assert_eq!(gateway.ask_as(&bob, "GET", &format!("/v1/calls/{id}"), "").0, 404);
    let name = format!("jwt:{}#bob", issuer.url);
    let (found, _) = place.json(&["receipts", "list", "--caller", &name]);
    assert_eq!(found["receipts"].as_array().map(Vec::len), Some(1), "{found}");
    // A pause stops a subject at once, although its token is still valid.
    assert_eq!(place.json(&["pause", "--caller", &name]).1, 0);
    let began = Instant::now();
    while gateway.ask_as(&bob, "POST", "/v1/calls", CALL).0 != 403 {
        assert!(began.elapsed() < CEILING, "the subject still calls");
    }
    assert_eq!(gateway.ask_as(&member, "POST", "/v1/calls", CALL).0, 200);
    // The issuer was asked once.
    assert_eq!(issuer.log(), ["GET /.well-known/oauth-authorization-server", "GET /keys"]);
    gateway.stop();
    place.assert_sound();
}

#[test]
fn each_attack_on_a_token_is_401_with_a_challenge_and_an_event() {
    let (place, issuer) = (Place::new(), Issuer::start());
    let foreign = Issuer::start();
    let old = issuer.token(&issuer.claims("x"));
    let (signed, _) = old.rsplit_once('.').expect("a token");
    let stale = old.clone();
    issuer.rotate();
    let gateway = gateway(&place, &issuer, "scopes = [\"tools\"]");
    let claims = || {
        let mut claims = issuer.claims(&gateway.url());
        claims["scope"] = "other tools".into();
        claims
    };
    let with = |name: &str, value: Value| {
        let mut claims = claims();
        claims[name] = value;
        issuer.token(&claims)
    };
    let headed = |header: Value| issuer.token_with(&header, &claims());
    let good = issuer.token(&claims());
    assert_eq!(gateway.ask_as(&good, "GET", "/v1/tools", "").0, 200);
    let of_foreign = {
        let mut claims = claims();
        claims["iss"] = issuer.url.clone().into();
        let header =
            json!({ "alg": "ES256", "kid": "key-2", "jku": format!("{}/keys", foreign.url) });
        foreign.token_with(&header, &claims)
    };
    let described = format!(
        "resource_metadata=\"http://{}/.well-known/oauth-protected-resource/mcp\"",
        gateway.address
    );
    // A token for a tool set is not valid for everything.
    let elsewhere = format!("{}/other", gateway.url());
    for (at, (token, reason)) in [
        (with("exp", (now() - 31).into()), "token-expired"),
        (with("nbf", (now() + 600).into()), "token-not-yet-valid"),
        (with("aud", "https://other.example/mcp".into()), "token-audience"),
        (with("aud", elsewhere.into()), "token-audience"),
        (with("iss", foreign.url.clone().into()), "token-issuer"),
        (foreign.token(&foreign.claims(&gateway.url())), "token-issuer"),
        (headed(json!({ "alg": "none" })), "token-algorithm"),
        (headed(json!({ "alg": "HS256", "kid": "key-2" })), "token-algorithm"),
        (headed(json!({ "alg": "ES256", "kid": "key-9" })), "token-key"),
        (headed(json!({ "alg": "RS256", "kid": "key-2" })), "token-key"),
        (stale, "token-key"),
        (of_foreign, "token-signature"),
        (headed(json!({ "alg": "ES256", "kid": "key-2", "crit": ["exp"] })), "token-critical"),
        (headed(json!({ "alg": "ES256", "kid": "key-2", "typ": "logout+jwt" })), "token-type"),
        (with("cnf", json!({ "jkt": "x" })), "token-claims"),
        (with("more", "x".repeat(20_000).into()), "token-too-long"),
        (format!("{signed}."), "token-key"),
        (good.replace('.', ".."), "token-malformed"),
        ("opaque".to_owned(), "token-malformed"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = if at % 2 == 0 { "/mcp" } else { "/v1/tools" };
        let bearer = format!("Bearer {token}");
        let (head, body) =
            exchange(&gateway.address, "GET", path, "", &[("Authorization", &bearer)])
                .expect("an answer");
        assert!(head.starts_with("HTTP/1.1 401"), "{reason}: {head}");
        let challenge = head.lines().find(|line| line.starts_with("www-authenticate:"));
        let challenge = challenge.expect("a challenge");
        let wanted = ["error=\"invalid_token\"", "scope=\"tools\"", &described];
        assert!(wanted.iter().all(|part| challenge.contains(part)), "{reason}: {challenge}");
        let told = events(&place);
        assert_eq!(told.len(), at + 1, "{reason}: {body}");
        let event = told.last().expect("an event");
        assert_eq!(event["facts"]["reason"], reason);
        let parts = token.split('.').filter(|part| part.len() > 20);
        assert!(parts.into_iter().all(|part| !event.to_string().contains(part)), "{event}");
    }
    // In the URL, also next to the header.
    let in_url = format!("/v1/tools?access_token={good}");
    let bearer = format!("Bearer {good}");
    let asked = exchange(&gateway.address, "GET", &in_url, "", &[("Authorization", &bearer)]);
    let head = asked.expect("an answer").0.to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 401") && head.contains("www-authenticate:"), "{head}");
    assert_eq!(events(&place).last().expect("an event")["facts"]["reason"], "in-url");
    assert_eq!(gateway.ask_as(&good, "GET", "/v1/tools", "").0, 200);
}

#[test]
fn subjects_of_two_issuers_are_two_callers() {
    let (place, one, other) = (Place::new(), Issuer::start(), Issuer::start());
    place.write(
        "toolbooth.toml",
        &format!(
            "[auth.issuers.one]\nissuer = \"{}\"\n[auth.issuers.other]\nissuer = \"{}\"\n\
             audiences = [\"gateway\"]\n\
             [callers.all]\nmatch = [\"jwt:{}#*\"]\ntools = [\"calculator\"]\ngrants = [\"*\"]\n",
            one.url, other.url, one.url
        ),
    );
    let gateway = place.serve();
    let own = one.token(&one.claims(&gateway.url()));
    assert_eq!(gateway.ask_as(&own, "POST", "/v1/calls", CALL).0, 200);
    // Each issuer has its own audiences, and its own callers.
    assert_eq!(gateway.ask_as(&one.token(&one.claims("gateway")), "GET", "/v1/tools", "").0, 401);
    let foreign = other.token(&other.claims("gateway"));
    assert_eq!(gateway.ask_as(&foreign, "GET", "/v1/tools", "").0, 200);
    assert_eq!(gateway.ask_as(&foreign, "POST", "/v1/calls", CALL).0, 404);
    // A token of one issuer that another has signed.
    let mut claims = other.claims("gateway");
    claims["iss"] = one.url.clone().into();
    assert_eq!(gateway.ask_as(&other.token(&claims), "GET", "/v1/tools", "").0, 401);
}

#[test]
fn a_token_without_the_scope_is_403_and_told_the_scope() {
    let (place, issuer) = (Place::new(), Issuer::start());
    let gateway = gateway(&place, &issuer, "scopes = [\"tools\", \"read\"]");
    let mut claims = issuer.claims(&gateway.url());
    claims["scope"] = "tools".into();
    let bearer = format!("Bearer {}", issuer.token(&claims));
    let asked = exchange(&gateway.address, "POST", "/mcp", "{}", &[("Authorization", &bearer)]);
    let (head, body) = asked.expect("an answer");
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
    let challenge = head.lines().find(|line| line.starts_with("www-authenticate:"));
    let challenge = challenge.expect("a challenge");
    for part in ["error=\"insufficient_scope\"", "scope=\"tools read\"", "resource_metadata=\""] {
        assert!(challenge.contains(part), "{challenge}");
    }
    let problem: Value = serde_json::from_str(&body).expect("a problem");
    assert_eq!(problem["code"], "insufficient-scope", "{problem}");
    let told = events(&place);
    let facts = &told.last().expect("an event")["facts"];
    assert_eq!(facts["reason"], "insufficient-scope");
    assert_eq!(facts["caller"], format!("jwt:{}#bob", issuer.url), "{facts}");
    // The description needs no credentials.
    for path in ["", "/mcp", "/mcp/work"] {
        let path = format!("/.well-known/oauth-protected-resource{path}");
        let (status, described) = gateway.get(&path);
        let suffix = if path.ends_with("work") { "/work" } else { "" };
        let resource = format!("{}{suffix}", gateway.url());
        assert_eq!((status, &described["resource"]), (200, &json!(resource)), "{described}");
        assert_eq!(described["authorization_servers"], json!([issuer.url]));
        assert_eq!(described["scopes_supported"], json!(["tools", "read"]));
    }
    let without = Place::new().serve();
    assert_eq!(without.get("/.well-known/oauth-protected-resource").0, 404);
}

#[test]
fn without_the_keys_of_its_issuer_a_token_is_refused_for_the_moment() {
    let (place, issuer) = (Place::new(), Issuer::start());
    issuer.set_away(true);
    let away = gateway(&place, &issuer, "");
    let token = issuer.token(&issuer.claims(&away.url()));
    let (status, problem) = away.ask_as(&token, "GET", "/v1/tools", "");
    assert_eq!((status, &problem["code"]), (503, &json!("record-unavailable")), "{problem}");
    assert_eq!(events(&place).last().expect("an event")["facts"]["reason"], "issuer-away");
    away.stop();
    issuer.set_away(false);
    let gateway = gateway(&place, &issuer, "");
    let token = || issuer.token(&issuer.claims(&gateway.url()));
    assert_eq!(gateway.ask_as(&token(), "GET", "/v1/tools", "").0, 200);
    issuer.set_away(true);
    assert_eq!(gateway.ask_as(&token(), "POST", "/v1/calls", CALL).0, 200);
}

#[test]
fn a_stream_ends_with_the_token_of_its_caller() {
    let (place, issuer) = (Place::new(), Issuer::start());
    let gateway = gateway(&place, &issuer, "");
    let mut claims = issuer.claims(&gateway.url());
    // Expired, within the accepted difference of clocks for a moment.
    claims["exp"] = (now() - 28).into();
    let token = issuer.token(&claims);
    let mut stream = gateway.listen_as(&token);
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("the stream ends in time");
    assert_eq!(gateway.ask_as(&token, "GET", "/v1/tools", "").0, 401);
}

#[test]
fn doctor_checks_the_issuers() {
    let (place, issuer) = (Place::new(), Issuer::start());
    gateway(&place, &issuer, "").stop();
    let state = |place: &Place| {
        let (told, _) = place.json(&["doctor"]);
        let checks = told["checks"].as_array().expect("checks").clone();
        let name = format!("issuer {}", issuer.url);
        checks.into_iter().find(|check| check["name"] == name.as_str()).expect("a check")
    };
    assert_eq!(state(&place)["state"], "ok");
    issuer.set_away(true);
    let check = state(&place);
    assert_eq!(check["state"], "failed", "{check}");
}

/// Runs a client's own OAuth code against a gateway; returns its output, and the requests to the issuer.
fn authorized(command: impl FnOnce(&str) -> Command, withheld: usize) -> (Value, Vec<String>) {
    let (place, issuer) = (Place::new(), Issuer::start());
    // Without this the client is `local`, and asked for nothing.
    let closed = "scopes = [\"tools\"]\n[http]\nloopback = \"none\"";
    let gateway = gateway(&place, &issuer, closed);
    issuer.withhold_scopes(withheld);
    let output = output_of(&mut command(&gateway.url()), b"");
    let told = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| {
        panic!("the client failed:\n{}", String::from_utf8_lossy(&output.stderr))
    });
    let found = gateway.operator_get(&format!("/v1/receipts?caller=jwt:{}%23bob", issuer.url)).1;
    assert_eq!(found["receipts"].as_array().map(Vec::len), Some(1), "{found}");
    (told, issuer.log())
}

/// Checks what a client did at the issuer.
fn assert_authorized(what: &str, told: &Value, log: &[String], visits: usize) {
    assert_eq!((&told["tools"], &told["text"]), (&json!(["calculator"]), &json!("42")), "{what}");
    let count = |line: &str| log.iter().filter(|own| *own == line).count();
    assert_eq!(count("POST /register"), 1, "{what}: {log:?}");
    assert_eq!(count("GET /authorize"), visits, "{what}: {log:?}");
    assert_eq!(count("POST /token authorization_code"), visits, "{what}: {log:?}");
}

#[test]
fn the_official_python_client_authorizes_with_its_own_code() {
    let Some(python) = set_up("venv/bin/python") else { return };
    let command = |mode: &'static str| {
        let python = python.clone();
        move |url: &str| {
            let mut command = Command::new(python);
            command.arg(repository().join("tests/clients/oauth_client.py")).args([url, mode]);
            command
        }
    };
    for mode in ["legacy", "2026-07-28"] {
        let (told, log) = authorized(command(mode), 0);
        assert_authorized(mode, &told, &log, 1);
    }
    // A token without the scope, and then one with it.
    let (told, log) = authorized(command("legacy"), 1);
    assert_authorized("step-up", &told, &log, 2);
}

#[test]
fn the_official_typescript_client_authorizes_with_its_own_code() {
    let Some(node) = crate::real_clients::setup::node() else { return };
    let package = target().join("test-env/clients/node_modules/@modelcontextprotocol/client");
    let command = |node: &Path| {
        let (node, package) = (node.to_owned(), package.clone());
        move |url: &str| {
            let mut command = Command::new(node);
            command.arg(repository().join("tests/clients/oauth_client.mjs")).arg(package).arg(url);
            command
        }
    };
    let (told, log) = authorized(command(&node), 0);
    assert_authorized("typescript", &told, &log, 1);
    // A tool set is a resource of its own.
    let (told, log) = authorized(|url| command(&node)(&format!("{url}/work")), 0);
    assert_authorized("a tool set", &told, &log, 1);
    let (told, log) = authorized(command(&node), 1);
    assert_authorized("step-up", &told, &log, 2);
}
