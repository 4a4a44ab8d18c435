use serde_json::json;

use super::*;

#[test]
fn big_integers_keep_every_digit() {
    let text = br#"{"a":9007199254740993,"b":18446744073709551615,"c":12345678901234567890123}"#;
    let value = parse(text).unwrap();
    assert_eq!(serde_json::to_string(&value).unwrap().as_bytes(), text);
    assert_eq!(canonical(&value).as_bytes(), text);
}

#[test]
fn faults_name_their_kind_and_pointer() {
    let cases: [(&[u8], JsonFaultKind, &str); 9] = [
        (br#"{"a":[1e400]}"#, JsonFaultKind::NumberTooLarge, "/a/0"),
        (br#"{"a":{"b":1,"b":2}}"#, JsonFaultKind::DuplicateKey, "/a/b"),
        (br#"{"a":1,"\u0061":2}"#, JsonFaultKind::DuplicateKey, "/a"),
        (br#"["\ud800"]"#, JsonFaultKind::LoneSurrogate, "/0"),
        (br#"["\udc00\ud800"]"#, JsonFaultKind::LoneSurrogate, "/0"),
        (
            br#"{"\u0024serde_json::private::Number":"1"}"#,
            JsonFaultKind::ReservedKey,
            "/$serde_json::private::Number",
        ),
        (b"[1,]", JsonFaultKind::Syntax, "/1"),
        (b"01", JsonFaultKind::Syntax, ""),
        (b"\"\xff\"", JsonFaultKind::NotUtf8, ""),
    ];
    for (text, kind, pointer) in cases {
        let fault = parse(text).unwrap_err();
        assert_eq!((fault.kind, fault.pointer().as_str()), (kind, pointer), "{fault}");
    }
}

#[test]
fn nesting_of_128_passes_and_129_does_not() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let three = parse(nested(3).as_bytes()).unwrap();
    assert!(is_within(&three, 3) && !is_within(&three, 2) && is_within(&Value::Null, 0));
    assert!(parse(nested(128).as_bytes()).is_ok());
    assert_eq!(parse(nested(129).as_bytes()).unwrap_err().kind, JsonFaultKind::TooDeep);
    assert_eq!(parse(nested(100_000).as_bytes()).unwrap_err().kind, JsonFaultKind::TooDeep);
}

#[test]
fn canonical_form_follows_rfc_8785_with_exact_integers() {
    let value = parse("{\"\u{20ac}\":1.0,\"\\r\":-0,\"a\":[1e21,1E-7,-0.0,333333333.33333329,4.50],\"\u{1f600}\":\"\\u000f\\n\"}".as_bytes()).unwrap();
    assert_eq!(
        canonical(&value),
        "{\"\\r\":0,\"a\":[1e+21,1e-7,0,33333333333333329e-8,4.5],\"\u{20ac}\":1,\"\u{1f600}\":\"\\u000f\\n\"}"
    );
}

#[test]
fn a_path_is_found_again_in_its_text() {
    let text = b"{\n  \"tools\": [ {\"a\": 1},\n    {\"b\": 2} ]\n}";
    let path = [Step::Key("tools".into()), Step::Index(1), Step::Key("b".into())];
    assert_eq!(line_column(text, locate(text, &path, true).unwrap()), (3, 6));
}

proptest::proptest! {
    #[test]
    fn no_bytes_panic(bytes: Vec<u8>) {
        let _ = parse(&bytes);
    }

    #[test]
    fn agrees_with_serde_json_on_what_is_json(text in r#"[\[\]{}",:0-9eE.\- a\\u]{0,24}"#) {
        if let Ok(value) = parse(text.as_bytes()) {
            let theirs: Value = serde_json::from_str(&text).unwrap();
            proptest::prop_assert_eq!(theirs, value);
        }
    }
}

#[test]
fn doubled_keys_cost_nothing_where_they_may_stand() {
    assert_eq!(parse_with_doubles(r#"{"a":1,"a":{"b":2}}"#).unwrap(), json!({"a": {"b": 2}}));
    for refused in [r#"{"a":1e400}"#, r#"{"a":"\ud800"}"#, "{"] {
        assert!(parse_with_doubles(refused).is_err(), "{refused}");
    }
    // Each fault contains its whole path, so the number of faults must be bounded.
    let text = format!(r#"{{"{}":{{{}"":1}}}}"#, "k".repeat(10_000), r#""":1,"#.repeat(5_000));
    let faults = parse_all_faults(text.as_bytes(), &mut |_, _, _| ()).unwrap_err();
    assert_eq!(faults.len(), FAULTS_MAX + 1);
}
