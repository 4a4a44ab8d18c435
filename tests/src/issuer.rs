//! An OAuth 2.1 authorization server of the tests' own: metadata, keys, registration, codes with PKCE,
//! tokens and refresh. It approves every request at once, as the subject `bob`.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use data_encoding::BASE64URL_NOPAD;
use ring::digest;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};
use url::form_urlencoded;

/// A signing key, by which tokens are signed with ES256.
struct SigningKey {
    kid: String,
    pair: EcdsaKeyPair,
}

impl SigningKey {
    fn new(kid: String) -> Self {
        let random = SystemRandom::new();
        let rules = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let made = EcdsaKeyPair::generate_pkcs8(rules, &random).expect("a key");
        let pair = EcdsaKeyPair::from_pkcs8(rules, made.as_ref(), &random).expect("the key");
        Self { kid, pair }
    }

    fn jwk(&self) -> Value {
        let (x, y) = self.pair.public_key().as_ref()[1..].split_at(32);
        let encode = |bytes| BASE64URL_NOPAD.encode(bytes);
        json!({ "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": self.kid,
            "x": encode(x), "y": encode(y) })
    }
}

/// What a code or a refresh token stands for.
#[derive(Clone)]
struct Grant {
    challenge: String,
    scope: String,
    resource: String,
}

struct State {
    /// The newest signs and is published.
    keys: Vec<SigningKey>,
    grants: HashMap<String, Grant>,
    /// The number of grants that get no scope, whatever the client asks for.
    withheld: usize,
    is_away: bool,
    /// The requests, as method and path, with the grant type of token requests.
    log: Vec<String>,
}

/// A running issuer; it ends with the process.
pub struct Issuer {
    /// Its identifier.
    pub url: String,
    state: Arc<Mutex<State>>,
}

struct Request {
    method: String,
    path: String,
    query: HashMap<String, String>,
    form: HashMap<String, String>,
    body: String,
}

fn pairs(text: &str) -> HashMap<String, String> {
    form_urlencoded::parse(text.as_bytes()).into_owned().collect()
}

impl Request {
    fn read(stream: &TcpStream) -> Option<Self> {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let mut words = line.split_whitespace();
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let line = line.trim().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(text) = line.strip_prefix("content-length:") {
                length = text.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let body = String::from_utf8(body).ok()?;
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let (path, query) = (path.to_owned(), pairs(query));
        Some(Self { method, path, query, form: pairs(&body), body })
    }
}

impl Issuer {
    /// Starts an issuer on this machine.
    pub fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let state = Arc::new(Mutex::new(State {
            keys: vec![SigningKey::new("key-1".to_owned())],
            grants: HashMap::new(),
            withheld: 0,
            is_away: false,
            log: Vec::new(),
        }));
        let issuer = Self { url: url.clone(), state: Arc::clone(&state) };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let own = Self { url: url.clone(), state: Arc::clone(&state) };
                std::thread::spawn(move || own.answer(&stream));
            }
        });
        issuer
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Signs with a new key from now on, and publishes only that one.
    pub fn rotate(&self) {
        let mut state = self.state();
        let kid = format!("key-{}", state.keys.len() + 1);
        state.keys.push(SigningKey::new(kid));
    }

    /// Answers no request from now on, or all again.
    pub fn set_away(&self, is_away: bool) {
        self.state().is_away = is_away;
    }

    /// Gives no scope to the next grants.
    pub fn withhold_scopes(&self, grants: usize) {
        self.state().withheld = grants;
    }

    /// Returns the requests so far.
    pub fn log(&self) -> Vec<String> {
        self.state().log.clone()
    }

    /// Returns the claims of a good token for a resource.
    pub fn claims(&self, resource: &str) -> Value {
        let now = now();
        json!({ "iss": self.url, "sub": "bob", "aud": resource, "iat": now, "exp": now + 600 })
    }

    /// Returns a token with these claims.
    pub fn token(&self, claims: &Value) -> String {
        let kid = self.state().keys.last().expect("a key").kid.clone();
        self.token_with(&json!({ "alg": "ES256", "typ": "at+jwt", "kid": kid }), claims)
    }

    /// Returns a token with this header, signed with ES256 in any case.
    pub fn token_with(&self, header: &Value, claims: &Value) -> String {
        let encode = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
        let signed = format!("{}.{}", encode(header), encode(claims));
        let state = self.state();
        let pair = &state.keys.last().expect("a key").pair;
        let signature = pair.sign(&SystemRandom::new(), signed.as_bytes()).expect("a signature");
        format!("{signed}.{}", BASE64URL_NOPAD.encode(signature.as_ref()))
    }

    fn answer(&self, mut stream: &TcpStream) {
        let Some(request) = Request::read(stream) else { return };
        let kind = request.form.get("grant_type").map(|kind| format!(" {kind}"));
        let line = format!("{} {}{}", request.method, request.path, kind.unwrap_or_default());
        {
            let mut state = self.state();
            if state.is_away {
                return;
            }
            state.log.push(line);
        }
        let (status, headers, body) = match self.reply(&request) {
            Ok(Reply::Document(status, body)) => (status, String::new(), body.to_string()),
            Ok(Reply::Redirect(to)) => ("302 Found", format!("Location: {to}\r\n"), String::new()),
            Err(error) => ("400 Bad Request", String::new(), json!({ "error": error }).to_string()),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: application/json\r\n{headers}\
             Cache-Control: no-store\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.write_all(body.as_bytes());
    }

    fn reply(&self, request: &Request) -> Result<Reply, &'static str> {
        let ok = |body| Ok(Reply::Document("200 OK", body));
        match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/.well-known/oauth-authorization-server") => ok(json!({
                "issuer": self.url,
                "authorization_endpoint": format!("{}/authorize", self.url),
                "token_endpoint": format!("{}/token", self.url),
                "registration_endpoint": format!("{}/register", self.url),
                "jwks_uri": format!("{}/keys", self.url),
                "response_types_supported": ["code"],
                "grant_types_supported": ["authorization_code", "refresh_token"],
                "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": ["none"],
                "authorization_response_iss_parameter_supported": true,
            })),
            ("GET", "/keys") => {
                let newest = self.state().keys.last().map(SigningKey::jwk);
                ok(json!({ "keys": newest.into_iter().collect::<Vec<_>>() }))
            }
            ("POST", "/register") => {
                let mut client: Value =
                    serde_json::from_str(&request.body).map_err(|_| "invalid_client_metadata")?;
                client["client_id"] = "client-1".into();
                client["token_endpoint_auth_method"] = "none".into();
                Ok(Reply::Document("201 Created", client))
            }
            ("GET", "/authorize") => self.authorize(&request.query),
            ("POST", "/token") => self.exchange(&request.form),
            _ => Ok(Reply::Document("404 Not Found", json!({}))),
        }
    }

    fn authorize(&self, query: &HashMap<String, String>) -> Result<Reply, &'static str> {
        let named = |name: &str| query.get(name).cloned().ok_or("invalid_request");
        if named("response_type")? != "code" || named("code_challenge_method")? != "S256" {
            return Err("invalid_request");
        }
        let mut state = self.state();
        let scope = match state.withheld {
            0 => query.get("scope").cloned().unwrap_or_default(),
            _ => {
                state.withheld -= 1;
                String::new()
            }
        };
        let grant =
            Grant { challenge: named("code_challenge")?, scope, resource: named("resource")? };
        let code = format!("code-{}", state.grants.len());
        state.grants.insert(code.clone(), grant);
        let own = query.get("state").map(String::as_str).unwrap_or_default();
        let back = form_urlencoded::Serializer::new(String::new())
            .extend_pairs([("code", code.as_str()), ("state", own), ("iss", &self.url)])
            .finish();
        Ok(Reply::Redirect(format!("{}?{back}", named("redirect_uri")?)))
    }

    fn exchange(&self, form: &HashMap<String, String>) -> Result<Reply, &'static str> {
        let named = |name: &str| form.get(name).map(String::as_str).ok_or("invalid_request");
        let grant = match named("grant_type")? {
            "authorization_code" => {
                let grant = self.state().grants.remove(named("code")?).ok_or("invalid_grant")?;
                let verifier = digest::digest(&digest::SHA256, named("code_verifier")?.as_bytes());
                if BASE64URL_NOPAD.encode(verifier.as_ref()) != grant.challenge {
                    return Err("invalid_grant");
                }
                grant
            }
            "refresh_token" => {
                self.state().grants.remove(named("refresh_token")?).ok_or("invalid_grant")?
            }
            _ => return Err("unsupported_grant_type"),
        };
        if named("resource")? != grant.resource {
            return Err("invalid_target");
        }
        let mut claims = self.claims(&grant.resource);
        claims["scope"] = grant.scope.clone().into();
        claims["client_id"] = named("client_id")?.into();
        let mut state = self.state();
        let refresh = format!("refresh-{}", state.grants.len());
        state.grants.insert(refresh.clone(), grant.clone());
        drop(state);
        Ok(Reply::Document(
            "200 OK",
            json!({ "access_token": self.token(&claims), "token_type": "Bearer",
                "expires_in": 600, "scope": grant.scope, "refresh_token": refresh }),
        ))
    }
}

enum Reply {
    Document(&'static str, Value),
    Redirect(String),
}

/// Returns the seconds since 1970.
pub fn now() -> u64 {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs()
}
