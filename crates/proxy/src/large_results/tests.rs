use toolbooth_contracts::{Effect, Status};

use super::*;

fn wanted(text: &str) -> Wanted {
    serde_json::from_str(text).unwrap()
}

fn result(content: Vec<Value>, structured: Option<Value>) -> ToolResult {
    ToolResult {
        tool_id: "t".into(),
        call_id: "c".into(),
        status: Status::Succeeded,
        is_error: false,
        effect: Effect::Completed,
        content: content.iter().map(|block| ContentBlock::of(block).unwrap()).collect(),
        structured_content: structured.map(|data| JsonText::of(&data).unwrap()),
        meta: None,
        error: None,
        replayed: false,
        warnings: Vec::new(),
        receipt_id: Some("r-1".into()),
        retry_after_ms: None,
        duration_ms: 0.0,
        execute_ms: None,
    }
}

#[test]
fn links_are_read_back() {
    for part in [Part::Block(3), Part::Structured] {
        let link = Link { receipt_id: "0198-ab".into(), part };
        assert_eq!(Link::parse(&link.uri()), Some(link));
    }
    let first = Link { receipt_id: "ab".into(), part: Part::Block(0) };
    assert_eq!(Link::parse("ab"), Some(first));
    for bad in ["", "a/b", "a b", "results/", "toolbooth+gateway:results/a/-1", "../a"] {
        assert_eq!(Link::parse(bad), None, "{bad}");
    }
}

#[test]
fn ranges_end_at_characters_and_come_to_an_end() {
    let text = "aäb€c";
    let mut all = String::new();
    let mut offset = 0;
    while offset < text.len() {
        let piece = wanted(&format!(r#"{{"result":"r","offset":{offset},"length":2}}"#));
        let piece = piece.of(text).unwrap();
        assert!(!piece.text.is_empty(), "{offset}");
        offset += piece.text.len();
        all.push_str(&piece.text);
    }
    assert_eq!(all, text);
    assert!(wanted(r#"{"result":"r","offset":99}"#).of(text).is_err());
    let piece = wanted(r#"{"result":"r","offset":8}"#).of(text).unwrap();
    assert_eq!((piece.text.as_str(), piece.extent.as_str()), ("", "bytes 8 to 8 of 8"));
}

#[test]
fn lines_and_pointers_are_found() {
    let text = "one\ntwo\nthree";
    let piece = wanted(r#"{"result":"r","line":2,"lines":1}"#).of(text).unwrap();
    assert_eq!(piece.text, "two\n");
    assert_eq!(piece.extent, "lines 2 to 2 of 3; go on with `line` 3");
    let text = r#"{"a":[{"b":"x"},12345678901234567890]}"#;
    let at = |pointer: &str| {
        wanted(&format!(r#"{{"result":"r","pointer":"{pointer}"}}"#)).of(text).map(|p| p.text)
    };
    assert_eq!(at("/a/0/b").unwrap(), "x");
    assert_eq!(at("/a/1").unwrap(), "12345678901234567890");
    assert_eq!(at("/a/0").unwrap(), r#"{"b":"x"}"#);
    for none in ["/z", "a", "/a/2", "/a/-", "/a/01", "/a/0/b/c", "/a/+1"] {
        assert!(at(none).is_err(), "{none}");
    }
    let steps = "/0".repeat(POINTER_STEPS_MAX);
    assert_eq!(at(&steps), Err(PieceError::NothingThere(steps.clone())));
    assert_eq!(at(&format!("{steps}/0")), Err(PieceError::LongPointer));
    assert_eq!(at(&format!("/{}", "0".repeat(POINTER_BYTES_MAX))), Err(PieceError::LongPointer));
    // A line that is too long is read on by bytes.
    let long = format!("first\n{}\nthird", "x".repeat(READ_BYTES_MAX + 1));
    let piece = wanted(r#"{"result":"r","line":2}"#).of(&long).unwrap();
    let extent = "lines 2 to 2 of 3; line 2 is cut: go on with `offset` 1048582";
    assert_eq!((piece.text.len(), piece.extent.as_str()), (READ_BYTES_MAX, extent));
    let rest = wanted(r#"{"result":"r","offset":1048582}"#).of(&long).unwrap();
    assert_eq!(rest.text, "x\nthird");
    assert!(wanted(r#"{"result":"r","line":9}"#).of("x").is_err());
    assert!(wanted(r#"{"result":"r","pointer":""}"#).of("no json").is_err());
    assert!(wanted(r#"{"result":"r","line":1,"offset":1}"#).of("x").is_err());
}

#[test]
fn only_large_texts_are_cut_and_blobs_keep_their_type() {
    let long = "x".repeat(10_000);
    let image = json!({"type": "image", "data": "AAAA".repeat(9_000), "mimeType": "image/png"});
    let cut = truncate_large_texts(
        result(
            vec![
                json!({"type":"text","text":long}),
                image.clone(),
                json!({"type":"text","text":"small"}),
            ],
            None,
        ),
        5_000,
    );
    assert_eq!(cut.content.len(), 4);
    assert_eq!(cut.content[1].tree()["uri"], "toolbooth+gateway:results/r-1/0");
    assert_eq!(cut.content[1].tree()["size"], 10_000);
    assert_eq!((&cut.content[2].tree(), &cut.content[3].tree()["text"]), (&image, &json!("small")));
    let same = result(vec![json!({"type":"text","text":long})], None);
    assert_eq!(truncate_large_texts(same.clone(), 10_000), same);
    assert_eq!(
        truncate_large_texts(result(vec![image.clone()], None), 10),
        result(vec![image.clone()], None)
    );
    let data = truncate_large_texts(result(vec![], Some(json!({ "a": long }))), 5_000);
    assert!(data.structured_content.is_none());
    assert_eq!(data.content[0].tree()["uri"], "toolbooth+gateway:results/r-1/structured");
    let stored = StoredResult {
        content: vec![ContentBlock::of(&image).unwrap()],
        structured_content: None,
        meta: None,
        error: None,
        warnings: Vec::new(),
    };
    let kept = ResultPart::of(&stored, &Link::parse("r/0").unwrap()).unwrap();
    let read = kept.as_resource("u");
    assert_eq!(read["contents"][0]["mimeType"], "image/png");
    assert!(read["contents"][0]["blob"].is_string());
}
