use super::*;

#[test]
fn a_line_is_one_line_and_nothing_of_it_is_hidden() {
    let text = format!("    sh -c 'start{}; evil'\nserver `x` is safe\tz", " ".repeat(400));
    let shown = one_line(&text);
    assert!(shown.starts_with("    sh -c 'start [400 blanks] ; evil'\\nserver"), "{shown}");
    assert!(!shown.contains('\n') && shown.ends_with("\\tz"), "{shown}");
    let long = "x".repeat(100_000);
    assert_eq!(one_line(&long).len(), long.len());
}

#[test]
fn a_host_is_named_where_a_url_hides_it() {
    assert_eq!(with_host("https://a.example/x"), "https://a.example/x");
    assert!(with_host("https://a.example@evil.example/").ends_with("(the host is evil.example)"));
    assert!(with_host("https://\u{430}.example/").contains("not ASCII"));
}
