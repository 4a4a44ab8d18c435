//! Tests of access tokens, with an issuer that changes its keys and goes away.

mod keys;
mod verification;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use async_trait::async_trait;
use data_encoding::BASE64URL_NOPAD;
use ring::rand::SystemRandom;
use ring::signature::{
    self, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair,
    Ed25519KeyPair, KeyPair, RsaKeyPair,
};
use serde_json::{Value, json};
use toolbooth_proxy::Moment;

use super::*;

const ISSUER: &str = "https://id.example";
const AUDIENCE: &str = "https://gateway.example/mcp";
/// An RSA key of 2048 bits, made for these tests.
const RSA: &[u8] = include_bytes!("../../../../testdata/rsa-2048.pk8");

/// A clock that the test sets, in seconds since 2027-01-15.
#[derive(Default)]
struct TestClock(AtomicU64);

impl TestClock {
    const START: u64 = 1_800_000_000;

    fn pass(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::SeqCst);
    }

    fn seconds(&self) -> u64 {
        Self::START + self.0.load(Ordering::SeqCst)
    }
}

impl Clock for TestClock {
    fn now(&self) -> Moment {
        Moment { text: String::new(), epoch_ms: (self.seconds() * 1_000).cast_signed() }
    }
    fn monotonic(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::SeqCst))
    }
}

enum Signer {
    Rsa(RsaKeyPair, &'static dyn signature::RsaEncoding),
    Ec(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
}

/// A signing key of the issuer.
struct Key {
    kid: &'static str,
    alg: &'static str,
    signer: Signer,
}

impl Key {
    fn new(kid: &'static str, alg: &'static str) -> Self {
        let random = SystemRandom::new();
        let ec = |rules| {
            let made = EcdsaKeyPair::generate_pkcs8(rules, &random).unwrap();
            Signer::Ec(EcdsaKeyPair::from_pkcs8(rules, made.as_ref(), &random).unwrap())
        };
        let rsa = |rules| Signer::Rsa(RsaKeyPair::from_pkcs8(RSA).unwrap(), rules);
        let signer = match alg {
            "RS256" => rsa(&signature::RSA_PKCS1_SHA256),
            "RS384" => rsa(&signature::RSA_PKCS1_SHA384),
            "RS512" => rsa(&signature::RSA_PKCS1_SHA512),
            "PS256" => rsa(&signature::RSA_PSS_SHA256),
            "PS384" => rsa(&signature::RSA_PSS_SHA384),
            "PS512" => rsa(&signature::RSA_PSS_SHA512),
            "ES256" => ec(&ECDSA_P256_SHA256_FIXED_SIGNING),
            "ES384" => ec(&ECDSA_P384_SHA384_FIXED_SIGNING),
            _ => {
                let made = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
                Signer::Ed(Ed25519KeyPair::from_pkcs8(made.as_ref()).unwrap())
            }
        };
        Self { kid, alg, signer }
    }

    fn jwk(&self) -> Value {
        let encode = |bytes: &[u8]| BASE64URL_NOPAD.encode(bytes);
        let mut jwk = match &self.signer {
            Signer::Rsa(pair, _) => {
                let key: RsaPublicKey = pair.public().into();
                json!({ "kty": "RSA", "n": encode(&key.n), "e": encode(&key.e) })
            }
            Signer::Ec(pair) => {
                let point = &pair.public_key().as_ref()[1..];
                let (x, y) = point.split_at(point.len() / 2);
                let curve = if x.len() == 32 { "P-256" } else { "P-384" };
                json!({ "kty": "EC", "crv": curve, "x": encode(x), "y": encode(y) })
            }
            Signer::Ed(pair) => {
                json!({ "kty": "OKP", "crv": "Ed25519", "x": encode(pair.public_key().as_ref()) })
            }
        };
        jwk["kid"] = self.kid.into();
        jwk["use"] = "sig".into();
        jwk
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.signer {
            Signer::Rsa(pair, rules) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(*rules, &random, message, &mut signature).unwrap();
                signature
            }
            Signer::Ec(pair) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            Signer::Ed(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }

    fn token_with(&self, header: &Value, claims: &Value) -> String {
        let encode = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
        let signed = format!("{}.{}", encode(header), encode(claims));
        let signature = BASE64URL_NOPAD.encode(&self.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }

    fn token(&self, claims: &Value) -> String {
        self.token_with(&json!({ "alg": self.alg, "kid": self.kid, "typ": "at+jwt" }), claims)
    }
}

/// The documents of the issuer.
struct TestIssuer {
    documents: Mutex<HashMap<String, Vec<u8>>>,
    is_away: AtomicBool,
    /// Whether each request panics.
    panics: AtomicBool,
    /// Requests for keys, and all requests.
    fetches: AtomicUsize,
    requests: AtomicUsize,
    /// Each request takes a permit before it is answered.
    gate: tokio::sync::Semaphore,
}

impl Default for TestIssuer {
    fn default() -> Self {
        Self {
            documents: Mutex::default(),
            is_away: AtomicBool::new(false),
            panics: AtomicBool::new(false),
            fetches: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            gate: tokio::sync::Semaphore::new(1_000),
        }
    }
}

impl TestIssuer {
    fn publish(&self, keys: &[&Key]) {
        let keys: Vec<Value> = keys.iter().map(|key| key.jwk()).collect();
        let mut documents = self.documents.lock().unwrap();
        let keys_at = format!("{ISSUER}/keys");
        let metadata = json!({ "issuer": ISSUER, "jwks_uri": keys_at });
        documents.insert(keys_at, json!({ "keys": keys }).to_string().into_bytes());
        let address = format!("{ISSUER}/.well-known/openid-configuration");
        documents.insert(address, metadata.to_string().into_bytes());
    }

    /// Answers no request until permits are added again.
    fn hang(&self) {
        self.gate.forget_permits(1_000_000);
    }

    /// The number of times that the keys were asked for.
    fn fetches(&self) -> usize {
        self.fetches.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Documents for TestIssuer {
    async fn get(&self, address: &str) -> Result<Vec<u8>, DocumentError> {
        let named = address.to_owned();
        if address.ends_with("/keys") {
            self.fetches.fetch_add(1, Ordering::SeqCst);
        }
        self.requests.fetch_add(1, Ordering::SeqCst);
        self.gate.acquire().await.unwrap().forget();
        assert!(!self.panics.load(Ordering::SeqCst), "a defect");
        if self.is_away.load(Ordering::SeqCst) {
            return Err(DocumentError::Status { address: named, status: 503 });
        }
        let found = self.documents.lock().unwrap().get(address).cloned();
        found.ok_or(DocumentError::NoDocument { address: named })
    }
}

struct Stage {
    clock: Arc<TestClock>,
    issuer: Arc<TestIssuer>,
    tokens: AccessTokens,
}

impl Stage {
    fn new(keys: &[&Key]) -> Self {
        let (clock, issuer) = (Arc::<TestClock>::default(), Arc::<TestIssuer>::default());
        issuer.publish(keys);
        let settings = IssuerSettings {
            name: "own".into(),
            issuer: ISSUER.into(),
            jwks_uri: None,
            audiences: Vec::new(),
            resource: Some(AUDIENCE.into()),
            groups_claim: Some("groups".into()),
        };
        let (documents, own): (Arc<dyn Documents>, Arc<dyn Clock>) =
            (Arc::clone(&issuer) as _, Arc::clone(&clock) as _);
        let tokens = AccessTokens::new(vec![settings], &documents, &own).unwrap();
        Self { clock, issuer, tokens }
    }

    fn claims(&self) -> Value {
        let now = self.clock.seconds();
        json!({ "iss": ISSUER, "sub": "bob", "aud": AUDIENCE, "exp": now + 3_600, "iat": now,
            "groups": ["team"], "scope": "tools" })
    }

    async fn name(&self, token: &str) -> Result<String, TokenRefusal> {
        self.tokens.authenticate(token, None).await.map(|proven| proven.identity.name)
    }

    /// Waits until a refresh in the background has ended.
    async fn fetched(&self, times: usize) {
        while self.issuer.fetches() < times {
            tokio::task::yield_now().await;
        }
        tokio::task::yield_now().await;
    }
}

const BOB: &str = "jwt:https://id.example#bob";

/// The components of an RSA key.
type RsaPublicKey = ring::rsa::PublicKeyComponents<Vec<u8>>;
