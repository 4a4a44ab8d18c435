use super::*;

#[test]
fn names_are_told_by_their_last_words() {
    for secret in [
        "apiKey",
        "API_KEY",
        "dbPassword",
        "client-secret",
        "x_access_token",
        "Authorization",
        "userCredentials",
        "PRIVATE KEY",
        "sessionCookie",
        "connectionString",
        "openAIToken",
    ] {
        assert!(names_a_secret(secret), "{secret}");
    }
    for harmless in [
        "maxInputTokens",
        "tokenizer",
        "secretRef",
        "tokens",
        "keyField",
        "secretary",
        "passwordPolicy",
        "description",
        "cookieConsent",
    ] {
        assert!(!names_a_secret(harmless), "{harmless}");
    }
    assert!(SECRET_WORDS.iter().all(|word| word.len() <= WORD_BYTES_MAX));
}

#[test]
fn a_name_of_very_many_words_is_judged_in_one_pass() {
    // Joining all tails of the words would take hours.
    let words = "a_".repeat(1 << 20);
    assert!(names_a_secret(&format!("{words}token")));
    assert!(names_a_secret(&format!("{words}Client_Secret")));
    assert!(!names_a_secret(&format!("{words}xtoken")));
}

#[test]
fn shapes_are_found_and_replaced() {
    let shapes = SecretShapes::builtin();
    let jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl";
    let cases = [
        (
            "-----BEGIN RSA PRIVATE KEY-----\nAAA\n-----END RSA PRIVATE KEY-----",
            "a PEM private key",
        ),
        (jwt, "a JSON Web Token"),
        ("see https://me:hunter2@example.com/x", "a URL with user-info"),
        ("Authorization: Bearer abcdefgh12345678ijkl", "an authorization value"),
    ];
    for (text, name) in cases {
        assert_eq!(shapes.recognise(text), Some(name), "{text}");
        assert!(shapes.recognise(&shapes.redact(text)).is_none(), "{}", shapes.redact(text));
    }
    assert_eq!(shapes.redact("a https://me:pw@h/x b"), "a https://[redacted]@h/x b");
    for harmless in [
        "-----BEGIN PUBLIC KEY-----",
        "eyJ",
        "https://example.com/@scope:x",
        "Bearer tokens are used",
        "mail me@example.com",
        "postgres://${USER}:${PASSWORD}@host/db",
    ] {
        assert_eq!(shapes.recognise(harmless), None, "{harmless}");
    }
}

proptest::proptest! {
    #[test]
    fn redaction_never_panics(text: String) {
        let _ = SecretShapes::builtin().redact(&text);
    }
}
