use super::*;

fn fault(text: &[u8]) -> (Option<String>, i64) {
    let fault = read(text).unwrap_err();
    (fault.id.map(|id| id.as_json().to_owned()), fault.error.code)
}

fn request(text: &str) -> Request {
    match read(text.as_bytes()).unwrap() {
        Incoming::One(Message::Request(request)) => request,
        other => panic!("{other:?}"),
    }
}

#[test]
fn requests_keep_their_parameters_as_they_came() {
    let read = request(r#"{"jsonrpc":"2.0","id":"a","method":"m","params":{ "x" : 1e2 }}"#);
    assert_eq!(read.id.as_json(), r#""a""#);
    assert_eq!(read.params.clone().take("x").unwrap().get(), "1e2");
    assert_eq!(read.params.member::<f64>("x").unwrap(), Some(100.0));
    let twice = br#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"x":1,"\u0078":2}}"#;
    assert_eq!(fault(twice), (Some("1".into()), -32_602));
    let many: Vec<String> = (0..40).map(|n| format!("\"m{n}\":{n}")).collect();
    let many =
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{{}}}}}"#, many.join(","));
    assert!(matches!(request(&many).params, Params::Whole(_)));
    assert_eq!(request(r#"{"jsonrpc":"2.0","id":"\u0061","method":"m"}"#).id, read.id);
    let empty = request(r#"{"jsonrpc":"2.0","id":-7,"method":"m","params":null}"#);
    assert!(empty.params.meta().unwrap().is_empty());
}

#[test]
fn of_meta_only_what_is_known_is_read() {
    let zeros = "0,".repeat(100_000);
    let text = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"_meta":{{"x":[{zeros}0],"progressToken":7,"toolbooth/callId":"c"}}}}}}"#
    );
    let meta = request(&text).params.meta().unwrap();
    assert_eq!(meta.len(), 2);
    let large = text.replace(r#""x":"#, r#""toolbooth/x":"#);
    assert_eq!(request(&large).params.meta().unwrap_err().code, -32_602);
    let twice = text.replace(r#""progressToken":7"#, r#""toolbooth/callId":"d""#);
    assert_eq!(request(&twice).params.meta().unwrap_err().code, -32_602);
    let odd = r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":[]}}"#;
    assert_eq!(request(odd).params.meta().unwrap_err().code, -32_602);
}

#[test]
fn a_byte_order_mark_is_skipped() {
    let text = "\u{feff}{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}";
    let read = read(text.as_bytes()).unwrap();
    assert!(matches!(read, Incoming::One(Message::Notification(_))));
}

#[test]
fn what_is_no_json_is_told_from_what_is_no_message() {
    for bad in [&b"{nonsense"[..], b"", b"\xff", b"{} {}", b"\xEF\xBB\xBF"] {
        assert_eq!(fault(bad), (None, -32_700), "{bad:?}");
    }
    for bad in [
        r#"{"jsonrpc":"2.0"}"#,
        r#"{"id":1,"method":"m"}"#.trim(),
        r#"{"jsonrpc":"1.0","method":"m"}"#,
        r#"{"jsonrpc":"2.0","id":1.5,"method":"m"}"#,
        r#"{"jsonrpc":"2.0","id":null,"method":"m"}"#,
        r#"{"jsonrpc":"2.0","id":[1],"method":"m"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"m","method":"n"}"#,
        r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{}}"#,
        "[]",
        "7",
    ] {
        assert_eq!(fault(bad.as_bytes()).1, -32_600, "{bad}");
    }
    let odd = br#"{"jsonrpc":"2.0","id":4,"method":"m","params":[1]}"#;
    assert_eq!(fault(odd), (Some("4".into()), -32_602));
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"a":{}1{}}}}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    assert!(request(&deep).params.meta().is_ok() || request(&deep).params.meta().is_err());
}

#[test]
fn the_id_of_a_beginning_is_the_messages_own() {
    let of = |text: &str| id_of_beginning(text.as_bytes()).map(|id| id.as_json().to_owned());
    assert_eq!(of(r#"{"jsonrpc":"2.0","id" : 7,"method":"m","params":{"a":"#), Some("7".into()));
    assert_eq!(of(r#"{"params":{"id":3},"id":"x","#), Some(r#""x""#.into()));
    for none in [
        r#"{"method":"m","params":{"id":3,"list":[{"id":4}],"text":"\"id\":5"#,
        r#"{"method":"id","params":"#,
        r#"{"id":"#,
        r#"{"id":12"#,
        r#"[{"id":1}"#,
        "\"id\":1",
        "",
    ] {
        assert_eq!(of(none), None, "{none}");
    }
}

#[test]
fn batches_are_read_message_by_message() {
    let text =
        br#"[{"jsonrpc":"2.0","id":1,"method":"ping"},7,{"jsonrpc":"2.0","id":2,"result":{}}]"#;
    let Incoming::Batch(items) = read(text).unwrap() else { panic!("a batch") };
    assert!(matches!(items[0], Ok(Message::Request(_))) && items[1].is_err());
    assert!(matches!(items[2], Ok(Message::Answer)));
    assert!(read(format!("[{}7]", "7,".repeat(100)).as_bytes()).is_err());
}

#[test]
fn errors_name_what_is_wrong_without_line_and_column() {
    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only its form is of interest")]
    struct Named {
        name: String,
    }
    let error = request(r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"name":5}}"#)
        .params
        .read::<Named>()
        .unwrap_err();
    assert_eq!(error.code, -32_602);
    assert!(error.message.contains("expected a string") && !error.message.contains("line"));
}
