//! Tests names of tools on the wire: of 128 characters, with dots, and with collisions.
//!
//! Path: 3. Doc: front-doors.md#names-on-the-wire

use std::collections::BTreeSet;

use serde_json::{Value, json};
use toolbooth_tests::Place;
use toolbooth_tests::mcp::Peer;

const MAX: usize = 128;

/// Returns unusual ids, each of a tool that prints it.
fn ids() -> Vec<String> {
    let long = |end: &str| format!("os.{}{end}", "x".repeat(MAX - 3 - end.len()));
    ["a.b_c", "a_b.c", "a.b.c", "a/b.c", "os.-", "os.with-dash", "os.UPPER", "os.upper"]
        .map(str::to_owned)
        .into_iter()
        .chain([
            long("1"),
            long("2"),
            format!("os.{}", "y".repeat(61)),
            format!("os.{}", "y".repeat(62)),
        ])
        .collect()
}

fn place(names: &str) -> Place {
    let place = Place::new();
    let mut settings = format!("[mcp]\nnames = \"{names}\"\n");
    let mut tools = Vec::new();
    for (n, id) in ids().iter().enumerate() {
        settings.push_str(&format!(
            "[runtimes.say{n}]\nkind = \"command\"\ncommand = [\"echo\", \"{id}\"]\n"
        ));
        tools.push(json!({ "name": id, "description": "d", "input_schema": {"type": "object"},
            "output_schema": {}, "execution": { "localRuntimeId": format!("say{n}") } }));
    }
    let registry = json!({ "version": "1.0.0", "tools": tools }).to_string();
    place.write("tools.registry.json", &registry).write("toolbooth.toml", &settings);
    place
}

fn listed(peer: &mut Peer) -> Vec<String> {
    let answer = peer.ask(1, "tools/list", json!({}));
    let tools = answer["result"]["tools"].as_array().unwrap_or_else(|| panic!("{answer}")).clone();
    let name = |tool: &Value| tool["name"].as_str().unwrap().to_owned();
    let builtin = ["calculator", "doc_parser", "list_dir", "read_file", "read_result"];
    tools.iter().map(name).filter(|name| !builtin.contains(&name.as_str())).collect()
}

/// Checks that each name reaches its tool.
fn assert_all_reached(peer: &mut Peer, names: &[String]) {
    let mut said = BTreeSet::new();
    for name in names {
        let answer = peer.call(1, name, json!({}));
        assert_eq!(answer["result"]["isError"], false, "{} {name}: {answer}", peer.name());
        said.insert(super::text(&answer).trim().to_owned());
    }
    assert_eq!(said, ids().into_iter().collect(), "{}", peer.name());
}

#[test]
fn short_names_fit_every_client_and_reach_their_own_tool() {
    let place = place("short");
    let gateway = place.serve();
    let mut known = None;
    for mut peer in Peer::all(&place, &gateway) {
        let names = listed(&mut peer);
        assert_eq!(names.len(), ids().len(), "{names:?}");
        for name in &names {
            let fits = name.len() <= 64
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
                && name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
            assert!(fits, "{name}");
        }
        assert_all_reached(&mut peer, &names);
        // An id also reaches its own tool, unless it is the name of another tool.
        for id in ids() {
            let answer = peer.call(2, &id, json!({}));
            assert_eq!(super::text(&answer).trim(), id, "{}: {answer}", peer.name());
        }
        assert_eq!(
            known.get_or_insert_with(|| names.clone()),
            &names,
            "the same names at every door"
        );
    }
    gateway.stop();
    let gateway = place.serve();
    let again = listed(&mut Peer::over_http(&gateway).remove(0));
    assert_eq!(known, Some(again), "names stay");
}

#[test]
fn native_names_are_the_ids() {
    let place = place("native");
    let gateway = place.serve();
    for mut peer in Peer::all(&place, &gateway) {
        let names = listed(&mut peer);
        assert_eq!(names.iter().cloned().collect::<BTreeSet<_>>(), ids().into_iter().collect());
        assert_all_reached(&mut peer, &names);
        let beyond = "x".repeat(MAX + 1);
        let answer = peer.call(1, &beyond, json!({}));
        assert_eq!(super::code(&answer), -32_602, "{}: {answer}", peer.name());
    }
}
