//! Tests how the keys of an issuer are found, fetched, renewed and kept while it is away.

use super::*;

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
async fn a_fetch_that_panics_is_an_attempt_that_failed() {
    let key = Key::new("1", "ES256");
    let stage = Stage::new(&[&key]);
    let token = key.token(&stage.claims());
    stage.issuer.panics.store(true, Ordering::SeqCst);
    let asked = tokio::time::timeout(Duration::from_secs(1), stage.name(&token)).await;
    assert_eq!(asked.unwrap(), Err(TokenRefusal::IssuerAway), "it does not wait for nothing");
    stage.issuer.panics.store(false, Ordering::SeqCst);
    stage.clock.pass(10);
    assert!(stage.name(&token).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_issuer_that_hangs_is_asked_once_and_delays_no_caller_whose_keys_are_known() {
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
