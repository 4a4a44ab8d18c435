//! Tests the notifications of changes: each client receives only those of its own view.
//!
//! Path: 10. Doc: front-doors.md#changes

use serde_json::{Value, json};
use toolbooth_tests::mcp::{
    Answer, LEGACY, Pipe, Session, modern, modern_headers, notification, post_modern, request, send,
};
use toolbooth_tests::{Place, RunningGateway};

use super::{code, until};

const ID: &str = "io.modelcontextprotocol/subscriptionId";
const TOOLS: &str = "notifications/tools/list_changed";

/// Returns a registry of tools with these descriptions.
fn registry(tools: &[(&str, &str)]) -> String {
    let tools: Vec<Value> = tools
        .iter()
        .map(|(name, description)| {
            json!({ "name": name, "description": description, "input_schema": {"type": "object"},
                "output_schema": {}, "execution": { "localRuntimeId": "say" } })
        })
        .collect();
    json!({ "version": "1.0.0", "tools": tools }).to_string()
}

/// Returns a place in which `os.hidden` is denied to every caller and the whitelist excludes `other.*`.
fn place() -> Place {
    let place = Place::new();
    place
        .write(
            "toolbooth.toml",
            "[policy]\nwhitelist = [\"os.*\", \"calculator\"]\n[callers.user]\nmatch = [\"local\"]\n\
             tools = [\"*\"]\ndeny = [\"os.hidden\"]\n[runtimes.say]\nkind = \"command\"\ncommand = [\"echo\", \"x\"]\n",
        )
        .write("tools.registry.json", &registry(&[("os.seen", "1"), ("os.hidden", "1")]));
    place
}

/// Writes a registry, and waits until the gateway has read it. Then a call of the new tool `other.NEW` is
/// denied by policy and not unknown.
fn publish(place: &Place, gateway: &RunningGateway, new: &str, tools: &[(&str, &str)]) {
    let new = format!("other.{new}");
    let mut all = tools.to_vec();
    all.push((&new, "d"));
    place.write("tools.registry.json", &registry(&all));
    until("the registry is read", || {
        let (_, answer) =
            gateway.post("/v1/calls", &json!({ "toolId": new, "args": {} }).to_string());
        answer["code"] == "policy-denied"
    });
}

fn listen(gateway: &RunningGateway, id: impl Into<Value>, notifications: Value) -> Answer {
    let message = modern(id, "subscriptions/listen", json!({ "notifications": notifications }));
    post_modern(&gateway.address, &message).answer()
}

/// Returns all messages of a stream until its end.
fn rest(mut stream: Answer) -> Vec<Value> {
    std::iter::from_fn(|| stream.event()).collect()
}

#[test]
fn a_change_is_told_to_those_who_see_it() {
    let place = place();
    let gateway = place.serve();
    let session = Session::begin(&gateway);
    let mut get = session.get();
    let mut listening = listen(&gateway, "one", json!({ "toolsListChanged": true }));
    let mut other = listen(
        &gateway,
        "two",
        json!({ "promptsListChanged": true, "resourcesListChanged": true }),
    );
    for stream in [&mut listening, &mut other] {
        let first = stream.event().unwrap();
        assert_eq!(first["method"], "notifications/subscriptions/acknowledged", "{first}");
    }
    let mut pipe = Pipe::session(&place, LEGACY);
    // No client sees changes of a hidden tool, or of one that the whitelist excludes.
    publish(&place, &gateway, "a", &[("os.seen", "1"), ("os.hidden", "2")]);
    publish(&place, &gateway, "b", &[("os.seen", "1")]);
    publish(&place, &gateway, "c", &[("os.seen", "2")]);
    assert_eq!(get.event().unwrap(), json!({ "jsonrpc": "2.0", "method": TOOLS }));
    let told = listening.event().unwrap();
    assert_eq!(
        (&told["method"], &told["params"]["_meta"][ID]),
        (&json!(TOOLS), &json!("one")),
        "{told}"
    );
    assert_eq!(pipe.message().unwrap()["method"], TOOLS);
    publish(&place, &gateway, "d", &[("os.seen", "2"), ("os.fresh", "1")]);
    assert_eq!(get.event().unwrap()["method"], TOOLS);
    assert_eq!(listening.event().unwrap()["method"], TOOLS);
    assert_eq!(pipe.message().unwrap()["method"], TOOLS);

    // There were two visible changes, and two notifications of them.
    assert_eq!(session.delete().status, 204);
    assert_eq!(rest(get), Vec::<Value>::new());
    let (said, exit, words) = pipe.finish();
    assert_eq!((said, exit), (Vec::new(), Some(0)), "{words}");
    gateway.stop();
    for (stream, id) in [(listening, "one"), (other, "two")] {
        let rest = rest(stream);
        assert_eq!(rest.len(), 1, "{rest:?}");
        assert_eq!(
            (&rest[0]["id"], &rest[0]["result"]["resultType"]),
            (&json!(id), &json!("complete")),
            "{rest:?}"
        );
    }
}

#[test]
fn a_change_while_no_client_reads_is_told_later() {
    let place = place();
    let gateway = place.serve();
    let session = Session::begin(&gateway);
    publish(&place, &gateway, "a", &[("os.seen", "2")]);
    assert_eq!(session.get().event().unwrap()["method"], TOOLS);
}

#[test]
fn a_listen_stream_says_what_it_tells_and_under_which_id() {
    let place = place();
    let gateway = place.serve();
    for id in [json!(7), json!("text"), json!(1_790_000_000_000_i64)] {
        let asked = json!({ "toolsListChanged": true, "promptsListChanged": false });
        let mut stream = listen(&gateway, id.clone(), asked);
        assert!(stream.status == 200 && stream.is_stream(), "{:?}", stream.head);
        let first = stream.event().unwrap();
        assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
        assert_eq!(first["params"]["_meta"][ID], id, "{first}");
        assert_eq!(
            first["params"]["notifications"],
            json!({ "toolsListChanged": true }),
            "{first}"
        );
    }
    // The acknowledgement leaves out an unknown resource.
    let asked = json!({ "toolsListChanged": true, "resourceSubscriptions": ["file:///none"] });
    let first = listen(&gateway, 1, asked).event().unwrap();
    assert_eq!(first["params"]["notifications"], json!({ "toolsListChanged": true }), "{first}");
    for params in [
        json!({}),
        json!({ "notifications": 7 }),
        json!({ "notifications": { "toolsListChanged": "yes" } }),
    ] {
        let answer =
            post_modern(&gateway.address, &modern(1, "subscriptions/listen", params.clone()))
                .answer();
        assert_eq!(answer.status, 400, "{params}");
        let answer = answer.json();
        assert_eq!((code(&answer), &answer["id"]), (-32_602, &json!(1)), "{answer}");
    }
    let message = modern(1, "subscriptions/listen", json!({ "notifications": {} }));
    let headers = modern_headers(&message);
    let mut headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    headers.extend([("Content-Type", "application/json"), ("Accept", "application/json")]);
    let answer = send(&gateway.address, "POST", &headers, message.to_string().as_bytes()).answer();
    assert_eq!((answer.status, answer.header("content-type")), (406, Some("application/json")));
}

#[test]
fn listening_over_stdio_ends_when_it_is_cancelled() {
    let place = place();
    let gateway = place.serve();
    let mut pipe = Pipe::start(&place);
    for id in ["kept", "cancelled"] {
        pipe.send(&modern(
            id,
            "subscriptions/listen",
            json!({ "notifications": { "toolsListChanged": true } }),
        ));
        let first = pipe.message().unwrap();
        assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
        assert_eq!(first["params"]["_meta"][ID], id, "{first}");
    }
    pipe.send(&modern(1, "tools/list", json!({})));
    assert!(pipe.message().unwrap()["result"].is_object(), "requests are served meanwhile");
    pipe.send(&notification("notifications/cancelled", json!({ "requestId": "cancelled" })));
    // The id is free again when the stream has ended.
    let fresh = modern("cancelled", "tools/list", json!({}));
    until("the stream ends", || {
        pipe.send(&fresh);
        code(&pipe.find(|message| message["method"].is_null())) == 0
    });
    publish(&place, &gateway, "a", &[("os.seen", "2")]);
    let told = pipe.message().unwrap();
    assert_eq!(
        (&told["method"], &told["params"]["_meta"][ID]),
        (&json!(TOOLS), &json!("kept")),
        "{told}"
    );
    let (rest, exit, words) = pipe.finish();
    assert_eq!(exit, Some(0), "{words}");
    assert_eq!(rest.len(), 1, "the end of the other: {rest:?}");
    assert_eq!(
        (&rest[0]["id"], &rest[0]["result"]["resultType"]),
        (&json!("kept"), &json!("complete"))
    );
}

#[test]
fn a_legacy_client_has_no_listen_stream() {
    let place = place();
    let gateway = place.serve();
    let session = Session::begin(&gateway);
    let params = json!({ "notifications": { "toolsListChanged": true } });
    let answer = session.post(&request(1, "subscriptions/listen", params)).answer().json();
    assert_eq!(code(&answer), -32_601, "{answer}");
}
