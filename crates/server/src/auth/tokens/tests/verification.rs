//! Tests which tokens are accepted: algorithms, claims, forgeries and the forms of common providers.

use super::*;

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
