//! Tests of access tokens with an issuer that changes its keys and goes away.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

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
const RSA: &[u8] = include_bytes!("../../../testdata/rsa-2048.pk8");

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
    is_away: std::sync::atomic::AtomicBool,
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
            is_away: std::sync::atomic::AtomicBool::new(false),
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

#[tokio::test]
async fn tokens_of_every_asymmetric_algorithm_name_their_subject() {
    let names = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"];
    for alg in names {
        let key = Key::new("1", alg);
        let stage = Stage::new(&[&key]);
        let proven = stage.tokens.authenticate(&key.token(&stage.claims()), None).await.unwrap();
        assert_eq!(proven.identity.name, BOB, "{alg}");
        assert_eq!(proven.identity.groups, ["own/team"]);
        assert_eq!(proven.identity.scopes, ["tools"]);
        assert_eq!(proven.valid_for, Duration::from_secs(3_630));
        // Another algorithm of the same key type does not verify.
        for other in names.iter().filter(|other| **other != alg) {
            let header = json!({ "alg": other, "kid": "1" });
            let refused = stage.name(&key.token_with(&header, &stage.claims())).await;
            assert!(
                matches!(refused, Err(TokenRefusal::Signature | TokenRefusal::UnknownKey)),
                "{alg} as {other}: {refused:?}"
            );
        }
    }
}

/// Metadata, key sets and tokens as widespread providers make them.
#[tokio::test]
async fn tokens_in_the_forms_of_common_providers_are_accepted() {
    let realm = "https://id.example/realms/team";
    let tenant = "https://login.example/6b1f/v2.0";
    let slash = "https://team.example/";
    let documents = Arc::<TestIssuer>::default();
    let put = |address: &str, document: &Value| {
        let mut all = documents.documents.lock().unwrap();
        all.insert(address.to_owned(), document.to_string().into_bytes());
    };
    let key = Key::new("k", "RS256");
    let mut bare = key.jwk();
    let members = bare.as_object_mut().unwrap();
    members.extend([("x5t".to_owned(), json!("aGk")), ("x5c".to_owned(), json!(["MIIB"]))]);
    let encryption = json!({ "kty": "RSA", "use": "enc", "alg": "RSA-OAEP", "kid": "e",
        "n": bare["n"], "e": "AQAB" });
    for (issuer, metadata, keys) in [
        (realm, format!("{realm}/.well-known/openid-configuration"), format!("{realm}/certs/keys")),
        (
            tenant,
            format!("{tenant}/.well-known/openid-configuration"),
            "https://keys.example/discovery/keys".to_owned(),
        ),
        (
            slash,
            "https://team.example/.well-known/openid-configuration".to_owned(),
            "https://team.example/.well-known/keys".to_owned(),
        ),
    ] {
        let document = json!({ "issuer": issuer, "jwks_uri": keys,
            "id_token_signing_alg_values_supported": ["RS256"], "claims_supported": ["sub"] });
        put(&metadata, &document);
        put(&keys, &json!({ "keys": [encryption, bare] }));
    }
    let settings = |issuer: &str, audience: &str, groups: Option<&str>| IssuerSettings {
        name: "p".into(),
        issuer: issuer.to_owned(),
        jwks_uri: None,
        audiences: vec![audience.to_owned()],
        resource: None,
        groups_claim: groups.map(str::to_owned),
    };
    let clock = Arc::<TestClock>::default();
    let (port, own): (Arc<dyn Documents>, Arc<dyn Clock>) =
        (Arc::clone(&documents) as _, Arc::clone(&clock) as _);
    let all = vec![
        settings(realm, AUDIENCE, Some("/realm_access/roles")),
        settings(tenant, "api://toolbooth", Some("groups")),
        settings(slash, AUDIENCE, None),
    ];
    let tokens = AccessTokens::new(all, &port, &own).unwrap();
    let now = clock.seconds();
    for (header, claims, name, groups, scopes) in [
        (
            json!({ "alg": "RS256", "typ": "JWT", "kid": "k" }),
            json!({ "exp": now + 300, "iat": now, "jti": "5f", "iss": realm,
                "aud": ["account", AUDIENCE], "sub": "0c9f-77", "typ": "Bearer", "azp": "agent",
                "realm_access": { "roles": ["team", "offline_access"] },
                "scope": "openid email", "email_verified": false, "acr": "1" }),
            "jwt:https://id.example/realms/team#0c9f-77",
            vec!["p/offline_access", "p/team"],
            vec!["email", "openid"],
        ),
        (
            json!({ "typ": "JWT", "alg": "RS256", "x5t": "aGk", "kid": "k" }),
            json!({ "aud": "api://toolbooth", "iss": tenant, "iat": now, "nbf": now,
                "exp": now + 4_000, "aio": "E2", "groups": ["3fa8-11"], "scp": "tools.call",
                "sub": "Wq_0", "uti": "x", "ver": "2.0", "xms_ftd": "z" }),
            "jwt:https://login.example/6b1f/v2.0#Wq_0",
            vec!["p/3fa8-11"],
            vec!["tools.call"],
        ),
        (
            json!({ "alg": "RS256", "typ": "at+jwt", "kid": "k" }),
            json!({ "iss": slash, "sub": "provider|62a", "iat": now, "exp": now + 86_400,
                "aud": [AUDIENCE, "https://team.example/userinfo"], "azp": "c",
                "scope": "openid", "permissions": ["read"] }),
            "jwt:https://team.example/#provider|62a",
            vec![],
            vec!["openid"],
        ),
    ] {
        let identity =
            tokens.authenticate(&key.token_with(&header, &claims), None).await.unwrap().identity;
        assert_eq!(identity.name, name);
        assert_eq!(
            (identity.groups, identity.scopes),
            (
                groups.into_iter().map(str::to_owned).collect(),
                scopes.into_iter().map(str::to_owned).collect(),
            )
        );
    }
}

#[tokio::test]
async fn forged_tokens_are_refused() {
    let (key, foreign) = (Key::new("1", "RS256"), Key::new("1", "ES256"));
    let stage = Stage::new(&[&key]);
    let claims = stage.claims();
    let with = |name: &str, value: Value| {
        let mut claims = claims.clone();
        claims[name] = value;
        key.token(&claims)
    };
    let of = |header: Value| key.token_with(&header, &claims);
    // A symmetric signature with the public key as the secret (RFC 8725, 2.1).
    let confused = {
        let encode = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
        let header = json!({ "alg": "HS256", "kid": "1" });
        let signed = format!("{}.{}", encode(&header), encode(&claims));
        let secret = BASE64URL_NOPAD.decode(key.jwk()["n"].as_str().unwrap().as_bytes()).unwrap();
        let secret = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &secret);
        let signature = ring::hmac::sign(&secret, signed.as_bytes());
        format!("{signed}.{}", BASE64URL_NOPAD.encode(signature.as_ref()))
    };
    let good = key.token(&claims);
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let unsigned = format!("{}.", of(json!({ "alg": "none" })).rsplit_once('.').unwrap().0);
    let other_claims = with("sub", "eve".into());
    let swapped = format!("{}.{signature}", other_claims.rsplit_once('.').unwrap().0);
    let now = stage.clock.seconds();
    for (what, token, refusal) in [
        ("another signer", foreign.token(&claims), TokenRefusal::UnknownKey),
        ("the claims of another token", swapped, TokenRefusal::Signature),
        ("no signature", format!("{signed}."), TokenRefusal::Signature),
        ("alg none", unsigned, TokenRefusal::Algorithm),
        ("the public key as a secret", confused, TokenRefusal::Algorithm),
        ("an unknown kid", of(json!({ "alg": "RS256", "kid": "2" })), TokenRefusal::UnknownKey),
        (
            "crit",
            of(json!({ "alg": "RS256", "kid": "1", "crit": ["b64"] })),
            TokenRefusal::Critical,
        ),
        ("expired", with("exp", (now - 31).into()), TokenRefusal::Expired),
        ("not yet valid", with("nbf", (now + 31).into()), TokenRefusal::NotYetValid),
        ("another issuer", with("iss", "https://id.example/".into()), TokenRefusal::Issuer),
        ("no issuer", with("iss", Value::Null), TokenRefusal::Issuer),
        (
            "another resource",
            with("aud", "https://other.example/mcp".into()),
            TokenRefusal::Audience,
        ),
        ("too long", with("more", "a".repeat(20_000).into()), TokenRefusal::TooLong),
    ] {
        assert_eq!(stage.name(&token).await, Err(refusal), "{what}");
    }
    // Keys that a header names or contains are not used.
    let header = json!({ "alg": "ES256", "kid": "1", "jwk": foreign.jwk(),
        "jku": "https://evil.example/keys", "x5u": "https://evil.example/chain" });
    let refused = stage.name(&foreign.token_with(&header, &claims)).await;
    assert_eq!(refused, Err(TokenRefusal::UnknownKey));
    assert_eq!(stage.name(&good).await.unwrap(), BOB);
}

#[tokio::test]
async fn a_token_without_a_kid_needs_a_single_candidate() {
    let (one, two) = (Key::new("1", "ES256"), Key::new("2", "ES256"));
    let header = json!({ "alg": "ES256" });
    let stage = Stage::new(&[&one]);
    assert!(stage.name(&one.token_with(&header, &stage.claims())).await.is_ok());
    let stage = Stage::new(&[&one, &two]);
    let refused = stage.name(&one.token_with(&header, &stage.claims())).await;
    assert_eq!(refused, Err(TokenRefusal::UnknownKey));
}

#[tokio::test]
async fn keys_are_fetched_once_and_again_when_they_are_old() {
    let key = Key::new("1", "ES256");
    let stage = Stage::new(&[&key]);
    let token = key.token(&stage.claims());
    let (one, two) = tokio::join!(stage.name(&token), stage.name(&token));
    assert!(one.is_ok() && two.is_ok());
    assert_eq!(stage.issuer.fetches(), 1);
    stage.clock.pass(299);
    stage.name(&token).await.unwrap();
    assert_eq!(stage.issuer.fetches(), 1);
    // In the background, with the known keys meanwhile.
    stage.clock.pass(1);
    stage.name(&token).await.unwrap();
    stage.fetched(2).await;
    // Too old to be used before they are fetched again.
    stage.clock.pass(600);
    stage.name(&token).await.unwrap();
    assert_eq!(stage.issuer.fetches(), 3);
}

#[tokio::test]
async fn a_new_key_is_found_and_one_that_is_gone_ends_its_tokens() {
    let (old, new) = (Key::new("old", "ES256"), Key::new("new", "ES256"));
    let stage = Stage::new(&[&old]);
    let (before, after) = (old.token(&stage.claims()), new.token(&stage.claims()));
    assert!(stage.name(&before).await.is_ok());
    stage.issuer.publish(&[&old, &new]);
    // Not fetched again at once, however many tokens name unknown keys.
    for _ in 0..100 {
        assert_eq!(stage.name(&after).await, Err(TokenRefusal::UnknownKey));
    }
    assert_eq!(stage.issuer.fetches(), 1);
    stage.clock.pass(10);
    assert!(stage.name(&after).await.is_ok() && stage.name(&before).await.is_ok());
    assert_eq!(stage.issuer.fetches(), 2);
    stage.issuer.publish(&[&new]);
    stage.clock.pass(600);
    assert_eq!(stage.name(&before).await, Err(TokenRefusal::UnknownKey));
    assert!(stage.name(&after).await.is_ok());
}

#[tokio::test]
async fn known_keys_are_used_while_the_issuer_is_away_and_not_for_ever() {
    let (key, unknown) = (Key::new("1", "ES256"), Key::new("2", "ES256"));
    let stage = Stage::new(&[&key]);
    let token = |stage: &Stage| key.token(&stage.claims());
    stage.issuer.is_away.store(true, Ordering::SeqCst);
    assert_eq!(stage.name(&token(&stage)).await, Err(TokenRefusal::IssuerAway));
    // The issuer is not asked again at once.
    stage.issuer.is_away.store(false, Ordering::SeqCst);
    assert_eq!(stage.name(&token(&stage)).await, Err(TokenRefusal::IssuerAway));
    stage.clock.pass(10);
    assert!(stage.name(&token(&stage)).await.is_ok());
    stage.issuer.is_away.store(true, Ordering::SeqCst);
    stage.clock.pass(24 * 3_600 - 1);
    assert!(stage.name(&token(&stage)).await.is_ok());
    // Whether the issuer has such a key now cannot be told.
    let refused = stage.name(&unknown.token(&stage.claims())).await;
    assert_eq!(refused, Err(TokenRefusal::IssuerAway));
    stage.clock.pass(1);
    assert_eq!(stage.name(&token(&stage)).await, Err(TokenRefusal::IssuerAway));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_does_not_end_the_fetch() {
    let key = Key::new("1", "ES256");
    let stage = Stage::new(&[&key]);
    let token = key.token(&stage.claims());
    stage.issuer.hang();
    let gone = tokio::time::timeout(Duration::from_millis(5), stage.name(&token)).await;
    assert!(gone.is_err(), "the request waits: {gone:?}");
    stage.issuer.gate.add_permits(10);
    stage.fetched(1).await;
    assert!(stage.name(&token).await.is_ok());
    assert_eq!(stage.issuer.fetches(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_issuer_that_hangs_is_asked_once_and_delays_nobody_who_has_keys() {
    let key = Key::new("1", "ES256");
    let stage = Arc::new(Stage::new(&[&key]));
    let token = key.token(&stage.claims());
    stage.issuer.hang();
    let ask = |token: &str| {
        let (stage, token) = (Arc::clone(&stage), token.to_owned());
        tokio::spawn(async move { stage.name(&token).await })
    };
    let first: Vec<_> = (0..WAITING + 10).map(|_| ask(&token)).collect();
    tokio::task::yield_now().await;
    // Longer than the pause between attempts, while the first one is in progress.
    stage.clock.pass(15);
    let later = ask(&token);
    for refused in first.into_iter().chain([later]) {
        assert_eq!(refused.await.unwrap(), Err(TokenRefusal::IssuerAway));
    }
    assert_eq!(stage.issuer.requests.load(Ordering::SeqCst), 1);

    // Two places of the metadata, and the keys.
    stage.issuer.gate.add_permits(3);
    stage.clock.pass(10);
    assert!(stage.name(&token).await.is_ok());
    // The known keys are used after a moment, and at once while the issuer is known to fail.
    stage.clock.pass(600);
    let token = key.token(&stage.claims());
    let most = Duration::from_secs(3);
    assert!(tokio::time::timeout(most, stage.name(&token)).await.unwrap().is_ok());
    tokio::time::sleep(Duration::from_secs(10)).await;
    for _ in 0..5 {
        stage.clock.pass(10);
        let asked = tokio::time::timeout(Duration::from_millis(1), stage.name(&token)).await;
        assert!(asked.unwrap().is_ok());
    }
}

/// More requests than may wait.
const WAITING: usize = 256;

#[tokio::test]
async fn metadata_is_searched_beyond_documents_that_are_no_metadata() {
    let key = Key::new("1", "ES256");
    let stage = Stage::new(&[&key]);
    let page = b"<!doctype html>".to_vec();
    let address = format!("{ISSUER}/.well-known/oauth-authorization-server");
    stage.issuer.documents.lock().unwrap().insert(address, page);
    assert!(stage.name(&key.token(&stage.claims())).await.is_ok());
}

#[tokio::test]
async fn a_token_that_was_verified_ends_in_time() {
    let key = Key::new("1", "ES256");
    let stage = Stage::new(&[&key]);
    let token = key.token(&stage.claims());
    assert!(stage.name(&token).await.is_ok());
    stage.clock.pass(3_629);
    let left = stage.tokens.authenticate(&token, None).await.unwrap().valid_for;
    assert_eq!(left, Duration::from_secs(1));
    stage.clock.pass(1);
    assert_eq!(stage.name(&token).await, Err(TokenRefusal::Expired));
}

#[tokio::test]
async fn metadata_of_another_issuer_is_not_used() {
    let key = Key::new("1", "ES256");
    let stage = Stage::new(&[&key]);
    let address = format!("{ISSUER}/.well-known/openid-configuration");
    for (wrong, keys) in [("https://evil.example", "/keys"), (ISSUER, ""), (ISSUER, "http")] {
        let keys = match keys {
            "http" => "http://id.example/keys".to_owned(),
            path => format!("{ISSUER}{path}"),
        };
        let mut document = json!({ "issuer": wrong, "jwks_uri": keys });
        if keys == ISSUER {
            document.as_object_mut().unwrap().remove("jwks_uri");
        }
        let bytes = document.to_string().into_bytes();
        stage.issuer.documents.lock().unwrap().insert(address.clone(), bytes);
        stage.clock.pass(10);
        let refused = stage.name(&key.token(&stage.claims())).await;
        assert_eq!(refused, Err(TokenRefusal::IssuerAway), "{document}");
        assert!(stage.tokens.probe().await[0].1.is_err());
    }
    stage.issuer.publish(&[&key]);
    assert!(matches!(stage.tokens.probe().await[0].1, Ok(1)));
}
