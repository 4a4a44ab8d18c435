use super::*;

fn known(secrets: &[&str]) -> KnownSecrets {
    let named = |secret: &&str| (SecretString::from((*secret).to_owned()), "<it>".to_owned());
    KnownSecrets::new(secrets.iter().map(named))
}

/// Returns the secret in every supported encoding.
fn encodings(secret: &str) -> Vec<String> {
    let percent = |text: &str, all: bool, upper: bool| {
        text.bytes()
            .map(|byte| match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' if !all => char::from(byte).to_string(),
                _ if upper => format!("%{byte:02X}"),
                _ => format!("%{byte:02x}"),
            })
            .collect::<String>()
    };
    let json = |text: &str| {
        let quoted = serde_json::to_string(text).unwrap();
        quoted[1..quoted.len() - 1].to_owned()
    };
    let ascii =
        |text: &str| text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
    let mut all = vec![
        secret.to_owned(),
        percent(secret, false, true),
        percent(secret, false, false),
        percent(secret, true, true),
        percent(&percent(secret, false, true), false, true),
        percent(secret, false, true).replace("%20", "+"),
        json(secret),
        json(&json(secret)),
        json(secret).replace('/', "\\/"),
        ascii(secret),
    ];
    if secret.len() >= ENCODED_BYTES_MIN {
        for around in ["", "a", "ab", "user:", "caf\u{e9} and more "] {
            let text = format!("{around}{secret}{around}");
            for encoding in [&data_encoding::BASE64, &data_encoding::BASE64URL] {
                let encoded = encoding.encode(text.as_bytes());
                all.push(percent(&encoded, false, true));
                all.push(encoded.replace('/', "\\/"));
                all.push(encoded);
            }
        }
    }
    all
}

#[test]
fn secrets_are_found_in_their_common_encodings() {
    for secret in [
        "hunter2",
        "s3cr3t/with+all=sorts&of \"quotes\" \\ and \u{e9}\u{1F600}\n",
        "sk-ant-0123456789abcdefABCDEF",
        "pa%41ss%\\word",
    ] {
        let known = known(&[secret]);
        for encoded in encodings(secret) {
            for (before, after) in [("", ""), ("x=", "&y"), ("{\"k\": \"", "\"}"), ("% \\", "\\ %")]
            {
                let text = format!("{before}{encoded}{after}");
                let clean = known.conceal_text(&text);
                assert!(clean.contains("<it>"), "{secret:?} stands in {text:?}");
                // Base64 of the adjacent text may remain, but not one byte of the secret.
                let left = clean.replace("<it>", "");
                assert!(left.len() <= before.len() + after.len() + 60, "{clean:?}");
            }
        }
    }
}

#[test]
fn no_part_of_a_secret_stays_in_base64() {
    let secret = "correct horse battery";
    let known = known(&[secret]);
    for before in ["", "u", "us", "use"] {
        for after in ["", "x", "xy", "xyz"] {
            let text = format!("{before}{secret}{after}");
            let clean = known.conceal_text(&BASE64_NOPAD.encode(text.as_bytes()));
            let (front, back) = clean.split_once("<it>").unwrap();
            let front = BASE64_NOPAD.encode(before.as_bytes()).starts_with(front);
            assert!(front, "{clean}");
            assert!(back.len() <= (after.len() * 8).div_ceil(6), "{clean}");
        }
    }
}

#[test]
fn parts_of_secrets_are_secrets() {
    let url = known(&["postgres://me:hunter22@host/db"]);
    assert_eq!(url.conceal_text("wrong password hunter22"), "wrong password <it>");
    let escaped = known(&["postgres://me:p%40ssw0rd99@h/db"]);
    assert_eq!(escaped.conceal_text("wrong password p@ssw0rd99"), "wrong password <it>");
    let header = known(&["Bearer abcdefgh"]);
    assert_eq!(header.conceal_text("token abcdefgh"), "token <it>");
}

#[test]
fn base64_on_several_lines_is_found() {
    let secret =
        "a secret that is so long that its base64 stands on more lines than one, as mail has it";
    let known = known(&[secret]);
    let encoded = data_encoding::BASE64.encode(format!("before {secret} after").as_bytes());
    for end in ["\n", "\r\n"] {
        let lines: Vec<&str> = (0..encoded.len().div_ceil(76))
            .map(|line| &encoded[line * 76..encoded.len().min(line * 76 + 76)])
            .collect();
        let clean = known.conceal_text(&lines.join(end));
        assert!(clean.contains("<it>") && clean.len() < 40, "{clean}");
    }
}

#[test]
fn what_things_are_called_stays_in_definitions() {
    let known = known(&["postgres"]);
    let mut tool = serde_json::json!({
        "name": "postgres_query", "description": "Asks postgres.",
        "inputSchema": { "properties": {
            "postgres": { "enum": ["postgres"], "default": "postgres" }, "uri": { "title": "postgres" },
        } },
    });
    known.conceal_definition(&mut tool);
    let expected = serde_json::json!({
        "name": "postgres_query", "description": "Asks <it>.",
        "inputSchema": { "properties": {
            "postgres": { "enum": ["postgres"], "default": "<it>" }, "uri": { "title": "<it>" },
        } },
    });
    assert_eq!(tool, expected);
}

/// Twenty secrets and 128 KiB of escapes: attempts that cannot succeed are not made.
#[test]
fn a_text_of_escapes_costs_no_more_than_its_length() {
    let secrets: Vec<String> = (0..20).map(|n| format!("s3cret/{n}+aB%{n}\\x{n}")).collect();
    let known = known(&secrets.iter().map(String::as_str).collect::<Vec<_>>());
    for part in ["\\", "%25", "%5C", "\\\"", "\\u0073"] {
        let text = part.repeat((128 << 10) / part.len());
        assert_eq!(known.conceal_text(&text), text);
    }
}

#[test]
fn what_overlaps_goes_as_a_whole() {
    let known = known(&["abcdef", "efghij", "cd12"]);
    assert_eq!(known.conceal_text("-abcdefghij-"), "-<it>-");
    assert_eq!(known.conceal_text("abc def \\u00"), "abc def \\u00");
}

proptest::proptest! {
    #[test]
    fn no_text_is_too_odd(secret in ".{0,12}", text in r#"[%\\u+a-f0-9 "]{0,64}|.{0,64}"#) {
        let known = known(&[&secret]);
        let clean = known.conceal_text(&text);
        proptest::prop_assert!(secret.len() < BYTES_MIN || !clean.contains(&secret) || "<it>".contains(&secret));
    }
}
