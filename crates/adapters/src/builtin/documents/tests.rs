use super::*;

fn parsed(bytes: &[u8], media_type: &str) -> Value {
    parse(bytes, media_type).unwrap()
}

#[test]
fn each_form_gives_text_headings_and_metadata() {
    let markdown = parsed(b"# One\n\ntext\n\n```\n# not\n```\n\nTwo *x*\n---\n", "text/markdown");
    assert_eq!(
        markdown["headings"],
        json!([{"level": 1, "text": "One"}, {"level": 2, "text": "Two x"}])
    );
    let html = parsed(
        b"<html><head><title>T</title><script>x()</script></head><body><h2>Head</h2><p>a &amp; b<br>c</p></body></html>",
        "text/html; charset=utf-8",
    );
    assert_eq!(html["text"], "Head\na & b\nc");
    assert_eq!(
        (&html["metadata"]["title"], &html["headings"][0]["level"]),
        (&json!("T"), &json!(2))
    );
    let csv = parsed(b"a,b\n1,2\n3,4\n", "text/csv");
    assert_eq!(
        (&csv["metadata"]["rows"], &csv["metadata"]["columns"]),
        (&json!(2), &json!(["a", "b"]))
    );
    assert_eq!(parsed(br#"{"b":1}"#, "application/json")["metadata"]["keys"], json!(["b"]));
    assert_eq!(guess("", b"%PDF-1.4"), "application/pdf");
}

#[test]
fn html_is_read_as_it_is_seen() {
    let text = |html: &str| parsed(html.as_bytes(), "text/html")["text"].clone();
    for (html, expected) in [
        ("<b>1</b>,234.<span>50</span>", "1,234.50"),
        ("<i>un</i>believable <b>H<sub>2</sub>O</b>", "unbelievable H2O"),
        ("a\n  <b> b </b>  c", "a b c"),
        ("<table><tr><td>a</td><td>b</td></tr><tr><td>c</td></tr></table>", "a b\nc"),
        ("<p>x</p> <p> y </p>", "x\ny"),
        (
            "<pre>def f():\n    if x:\n        return 1</pre>z",
            "def f():\n    if x:\n        return 1\nz",
        ),
    ] {
        assert_eq!(text(html), expected, "{html}");
    }
    let html = "<svg><title>icon</title></svg><h1>One<br>Two</h1><template><h2>no</h2></template>";
    let html = parsed(html.as_bytes(), "text/html");
    assert_eq!(html["headings"], json!([{"level": 1, "text": "One Two"}]));
    assert!(html["metadata"].get("title").is_none());
}

#[test]
fn a_small_pdf_is_read() {
    let pdf = b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n3 0 obj<</Type/Page/Parent 2 0 R/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>endobj\n4 0 obj<</Length 44>>stream\nBT /F1 12 Tf 10 10 Td (Hello World) Tj ET   \nendstream endobj\n5 0 obj<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>endobj\ntrailer<</Root 1 0 R/Size 6>>\n";
    match parse(pdf, "application/pdf") {
        Ok(data) => assert!(data["text"].as_str().unwrap().contains("Hello World"), "{data}"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn bad_documents_get_a_sentence() {
    for (bytes, media_type) in [
        (&b"\xff\xfe"[..], "text/plain"),
        (b"{", "application/json"),
        (b"a,b\n1\n", "text/csv"),
        (b"%PDF-1.4 nonsense", "application/pdf"),
        (b"x", "image/png"),
    ] {
        assert!(parse(bytes, media_type).is_err(), "{media_type}");
    }
}
