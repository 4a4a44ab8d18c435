//! Generates the text of registry files of any size.

/// The text of a registry file with this number of entries.
pub(crate) fn registry(entries: usize) -> String {
    let tools: Vec<String> = (0..entries)
        .map(|n| {
            format!(
                r#"{{"name":"domain{}.method_{n}","description":"Does the thing number {n}.",
"input_schema":{{"type":"object","required":["id"],"properties":{{"id":{{"type":"integer","minimum":1}},"note":{{"type":"string","maxLength":200}}}},"additionalProperties":false}},
"output_schema":{{}},"permissions":["read:db"],"idempotency":{{"mode":"keyed","key_field":"id"}},"timeout_ms":5000,"receipt_fields":["result.id"]}}"#,
                n % 50
            )
        })
        .collect();
    format!(r#"{{"version":"1.0.0","tools":[{}]}}"#, tools.join(","))
}
