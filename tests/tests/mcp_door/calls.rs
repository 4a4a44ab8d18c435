//! Tests calls in progress: ids, progress, cancellation, and clients that disconnect.
//!
//! Path: 1, 7, 9, 10. Doc: front-doors.md#progress, front-doors.md#cancellation

use std::net::SocketAddr;

use serde_json::{Value, json};
use toolbooth_tests::mcp::{
    LEGACY, Peer, Pending, Pipe, Session, modern, notification, post_modern, request,
};
use toolbooth_tests::stage::Stage;
use toolbooth_tests::{Place, RunningGateway};

use super::{code, staged, text, until};

/// Returns parameters of a call that waits for the test; `key` is also its call id.
fn waiting(key: &str) -> Value {
    json!({ "name": "stage_wait", "arguments": { "key": key }, "_meta": { "toolbooth/callId": key } })
}

/// Returns parameters of a call that reports steps.
fn steps(key: &str, token: Value, first: u64, last: u64) -> Value {
    json!({ "name": "stage_steps", "arguments": { "key": key, "first": first, "last": last },
        "_meta": { "progressToken": token } })
}

/// Returns the code and the terminal event of a call, once it has records.
fn recorded(place: &Place, call: &str) -> (Value, Value, usize) {
    until("the call has records", || !place.records(call).logs.is_empty());
    // They are written together, but read one after the other.
    let records = place.records(call);
    let event = records.events.last().map(|event| event["event"].clone());
    (records.logs[0]["errorCode"].clone(), event.unwrap_or_default(), records.receipts.len())
}

fn assert_cancelled(place: &Place, call: &str) {
    let expected = (json!("cancelled"), json!("TOOL_EXECUTION_CANCELLED"), 1);
    assert_eq!(recorded(place, call), expected, "{call}");
}

#[test]
fn an_id_in_use_is_refused_and_its_request_goes_on_over_http() {
    let (place, stage) = staged("");
    let gateway = place.serve();
    let session = Session::begin(&gateway);
    let first = session.post(&request(1, "tools/call", waiting("first")));
    let mut actor = stage.next();
    for method in ["tools/call", "ping"] {
        let duplicate = session.post(&request(1, method, waiting("duplicate"))).answer();
        assert_eq!(duplicate.status, 400);
        let duplicate = duplicate.json();
        assert_eq!((code(&duplicate), &duplicate["id"]), (-32_600, &json!(1)), "{duplicate}");
    }
    // The id "1" differs from the id 1, and another session has its own ids.
    assert_eq!(session.post(&request("1", "ping", json!({}))).answer().status, 200);
    let other = Session::begin(&gateway);
    assert_eq!(other.post(&request(1, "ping", json!({}))).answer().status, 200);
    actor.go();
    assert_eq!(text(&first.answer().json()), "done first");
    assert_eq!(session.post(&request(1, "ping", json!({}))).answer().status, 200, "free again");

    // Requests of the modern era share no session, so equal ids do not conflict.
    let all = ["one", "two"].map(|key| {
        let sent = post_modern(&gateway.address, &modern(1, "tools/call", waiting(key)));
        (key, sent, stage.next())
    });
    for (key, sent, mut actor) in all {
        assert_eq!(actor.key, key);
        actor.go();
        assert_eq!(text(&sent.answer().json()), format!("done {key}"));
    }
    gateway.stop();
    assert!(place.records("duplicate").logs.is_empty(), "what was refused called no tool");
}

#[test]
fn an_id_in_use_is_refused_and_its_request_goes_on_over_stdio() {
    let (place, stage) = staged("");
    for mut peer in Peer::over_pipes(&place) {
        let first = peer.begin(1, "tools/call", waiting(peer.name()));
        let mut actor = stage.next();
        let _duplicate = peer.begin(1, "tools/list", json!({}));
        let (Peer::ModernPipe(pipe) | Peer::LegacyPipe(pipe)) = &mut peer else { continue };
        let refused = pipe.message().unwrap();
        // A client would treat an error with this id as the response to the first request.
        assert_eq!((code(&refused), &refused["id"]), (-32_600, &Value::Null), "{refused}");
        let text_id = peer.ask("1", "tools/list", json!({}));
        assert!(text_id["result"]["tools"].is_array(), "{text_id}");
        actor.go();
        let answer = peer.finish(first);
        assert_eq!(text(&answer), format!("done {}", peer.name()));
        assert!(peer.ask(1, "tools/list", json!({}))["result"].is_object(), "free again");
    }
}

#[test]
fn progress_comes_in_order_before_the_answer_and_never_after_it() {
    let (place, stage) = staged("");
    let gateway = place.serve();
    for mut peer in Peer::all(&place, &gateway) {
        for token in [json!("a token"), json!(7), json!(0), json!("")] {
            let mut pending = peer.begin(1, "tools/call", steps("one", token.clone(), 1, 5));
            let mut actor = stage.next();
            for done in 1..=5 {
                actor.go();
                let told = peer.next(&mut pending);
                assert_eq!(
                    told["method"],
                    "notifications/progress",
                    "{} {token}: {told}",
                    peer.name()
                );
                let params = &told["params"];
                assert_eq!(params["progressToken"], token, "{}: {told}", peer.name());
                assert_eq!(params["progress"].as_f64(), Some(f64::from(done)), "{told}");
                assert_eq!(params["total"].as_f64(), Some(5.0), "{told}");
            }
            actor.go();
            let answer = answer_after(&mut peer, &mut pending, 6.0);
            assert_eq!(text(&answer), "done one", "{}: {answer}", peer.name());
            assert_eq!(actor.line(), "", "the tool has ended");
            peer.assert_served("progress");
            if let Peer::ModernPipe(pipe) | Peer::LegacyPipe(pipe) = &mut peer {
                pipe.send(&request("last", "no/such", json!({})));
                assert_eq!(pipe.message().unwrap()["id"], "last", "nothing comes after the answer");
            }
        }
    }
}

/// Returns the response of a call of which the tool reports the progress `late` after it. The report can
/// reach the gateway before the response; otherwise it is dropped.
fn answer_after(peer: &mut Peer, pending: &mut Pending, late: f64) -> Value {
    let message = peer.next(pending);
    if message["params"]["progress"].as_f64() == Some(late) { peer.next(pending) } else { message }
}

#[test]
fn a_burst_of_progress_stays_in_order_and_its_last_arrives() {
    let (place, _stage) = staged("");
    let gateway = place.serve();
    for mut peer in Peer::all(&place, &gateway) {
        let params = json!({ "name": "stage_burst", "arguments": { "last": 500 },
            "_meta": { "progressToken": "t" } });
        let mut pending = peer.begin(1, "tools/call", params);
        let mut told = Vec::new();
        let answer = loop {
            let message = peer.next(&mut pending);
            match message["params"]["progress"].as_f64() {
                Some(done) => told.push(done),
                None => break message,
            }
        };
        assert_eq!(text(&answer), "done");
        assert!(told.is_sorted_by(|one, next| one < next), "{}: {told:?}", peer.name());
        assert_eq!(told.last(), Some(&500.0), "{}: {told:?}", peer.name());
    }
}

#[test]
fn calls_that_ask_for_no_progress_are_told_none() {
    let (place, stage) = staged("");
    let gateway = place.serve();
    for mut peer in Peer::all(&place, &gateway) {
        for token in [Value::Null, json!({}), json!([1]), json!(true)] {
            let mut pending = peer.begin(1, "tools/call", steps("quiet", token.clone(), 1, 2));
            let mut actor = stage.next();
            (0..3).for_each(|_| actor.go());
            let answer = peer.next(&mut pending);
            assert_eq!(text(&answer), "done quiet", "{} {token}: {answer}", peer.name());
        }
    }
}

#[test]
fn one_progress_token_of_two_clients_reaches_each_with_its_own() {
    let (place, stage) = staged("");
    let gateway = place.serve();
    let pairs = [Peer::over_http(&gateway), Peer::over_http(&gateway)];
    let [ones, others] = pairs;
    for (mut one, mut other) in ones.into_iter().zip(others) {
        let mut first = one.begin(1, "tools/call", steps("first", json!("same"), 1, 3));
        let mut first_actor = stage.next();
        let mut second = other.begin(1, "tools/call", steps("second", json!("same"), 101, 103));
        let mut second_actor = stage.next();
        for done in 1..=3 {
            second_actor.go();
            let told = other.next(&mut second);
            assert_eq!(
                told["params"]["progress"].as_f64(),
                Some(100.0 + f64::from(done)),
                "{told}"
            );
            first_actor.go();
            let told = one.next(&mut first);
            assert_eq!(told["params"]["progress"].as_f64(), Some(f64::from(done)), "{told}");
            assert_eq!(told["params"]["progressToken"], "same");
        }
        first_actor.go();
        second_actor.go();
        assert_eq!(text(&answer_after(&mut one, &mut first, 4.0)), "done first");
        assert_eq!(text(&answer_after(&mut other, &mut second, 104.0)), "done second");
    }
}

#[test]
fn a_cancelled_call_is_heard_by_its_tool_and_recorded() {
    let (place, stage) = staged("");
    let gateway = place.serve();
    for mut peer in Peer::all(&place, &gateway) {
        let key = format!("cancelled {}", peer.name());
        let other_key = format!("other {}", peer.name());
        let pending = peer.begin(1, "tools/call", waiting(&key));
        let mut actor = stage.next();
        let other = peer.begin(2, "tools/call", waiting(&other_key));
        let mut other_actor = stage.next();
        peer.cancel(pending);
        assert_eq!(actor.line(), "cancelled", "{}", peer.name());
        assert_cancelled(&place, &key);
        other_actor.go();
        assert_eq!(
            text(&peer.finish(other)),
            format!("done {other_key}"),
            "only one was cancelled"
        );
        peer.assert_served("a cancelled call");
    }
}

#[test]
fn cancelling_what_is_not_in_progress_changes_nothing() {
    let (place, stage) = staged("");
    let gateway = place.serve();
    for mut peer in Peer::all(&place, &gateway) {
        if matches!(peer, Peer::ModernHttp(_)) {
            continue; // In this case the end of the stream cancels, and the notification has no effect.
        }
        let pending = peer.begin(1, "tools/call", waiting(peer.name()));
        let mut actor = stage.next();
        for params in [
            json!({ "requestId": 99 }),
            json!({ "requestId": "1" }),
            json!({ "requestId": null }),
            json!({ "requestId": [1] }),
            json!({ "requestId": 1.0 }),
            json!({}),
        ] {
            let note = notification("notifications/cancelled", params);
            match &mut peer {
                Peer::ModernPipe(pipe) | Peer::LegacyPipe(pipe) => pipe.send(&note),
                Peer::LegacyHttp(session) => assert_eq!(session.post(&note).answer().status, 202),
                Peer::ModernHttp(_) => (),
            }
        }
        // Unknown notifications are ignored too.
        if let Peer::ModernPipe(pipe) | Peer::LegacyPipe(pipe) = &mut peer {
            pipe.send(&notification("notifications/of-a-later-time", json!({})));
            pipe.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled" }));
        }
        peer.assert_served("cancelling nothing");
        actor.go();
        assert_eq!(text(&peer.finish(pending)), format!("done {}", peer.name()));
    }
}

#[test]
fn a_cancellation_that_races_with_the_answer_harms_nothing() {
    let (place, stage) = staged("");
    let gateway = place.serve();
    for mut peer in Peer::all(&place, &gateway) {
        for round in 0..20 {
            let key = format!("race {round} {}", peer.name());
            let pending = peer.begin(round, "tools/call", waiting(&key));
            let mut actor = stage.next();
            // The order in which both reach the gateway is not determined.
            if round % 2 == 0 {
                actor.go();
                peer.cancel(pending);
            } else {
                peer.cancel(pending);
                actor.go();
            }
        }
        // Each call ends exactly once, and the client is still served.
        peer.assert_served("races");
        for round in 0..20 {
            let (error, event, receipts) =
                recorded(&place, &format!("race {round} {}", peer.name()));
            let ended = if error.is_null() { "TOOL_EXECUTED" } else { "TOOL_EXECUTION_CANCELLED" };
            assert_eq!((event, receipts), (json!(ended), 1), "{} {round}", peer.name());
        }
        if let Peer::ModernPipe(pipe) | Peer::LegacyPipe(pipe) = peer {
            let (rest, exit, _) = pipe.finish();
            for round in 0..20 {
                let answers = rest.iter().filter(|message| message["id"] == round).count();
                assert!(answers <= 1, "{round} was answered twice");
            }
            assert_eq!(exit, Some(0));
        }
    }
}

/// Waits until the gateway has closed its end of a connection.
fn wait_until_closed(gateway: &RunningGateway, client: SocketAddr) {
    let port = |address: &str| {
        address.rsplit(':').next().and_then(|port| u16::from_str_radix(port, 16).ok())
    };
    let own: u16 = gateway.address.rsplit(':').next().unwrap().parse().unwrap();
    until("the gateway closes the connection", || {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        !table.lines().skip(1).any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let ends = (fields.next().and_then(port), fields.next().and_then(port));
            // 01 = established, 08 = the client has closed.
            ends == (Some(own), Some(client.port())) && matches!(fields.next(), Some("01" | "08"))
        })
    });
}

#[test]
fn the_body_of_a_call_whose_client_hung_up_stays_in_the_budget() {
    const LARGE: usize = 5_000_000;
    let (place, stage) = staged("[http]\nbody_bytes_budget = 8388608\n");
    let gateway = place.serve();
    let session = Session::begin(&gateway);
    let sent = session.post_padded(&request(1, "tools/call", waiting("held")), LARGE);
    let mut actor = stage.next();
    wait_until_closed(&gateway, sent.hang_up());
    // The call continues, and its bytes remain in the budget.
    let ping = request(2, "ping", json!({}));
    assert_eq!(session.post_padded(&ping, LARGE).answer().status, 503);
    actor.go();
    assert_eq!(recorded(&place, "held"), (Value::Null, json!("TOOL_EXECUTED"), 1));
    until("the bytes are given back", || session.post_padded(&ping, LARGE).answer().status == 200);
}

#[test]
fn a_client_that_hangs_up_cancels_in_the_modern_era_only() {
    let (place, stage) = staged("");
    let gateway = place.serve();
    let hang_up = |sent: toolbooth_tests::mcp::Sent| wait_until_closed(&gateway, sent.hang_up());

    let session = Session::begin(&gateway);
    let sent = session.post(&request(1, "tools/call", waiting("legacy")));
    let mut actor = stage.next();
    hang_up(sent);
    assert_eq!(session.ping(), 200);
    actor.go();
    assert_eq!(recorded(&place, "legacy"), (Value::Null, json!("TOOL_EXECUTED"), 1));

    let sent = post_modern(&gateway.address, &modern(1, "tools/call", waiting("modern")));
    let mut actor = stage.next();
    hang_up(sent);
    assert_eq!(actor.line(), "cancelled");
    assert_cancelled(&place, "modern");

    // The same check follows for a stream that has begun.
    let session_params = steps("streamed legacy", json!("t"), 1, 2);
    let mut answers = Vec::new();
    for (key, is_modern) in [("streamed legacy", false), ("streamed modern", true)] {
        let mut params = session_params.clone();
        params["arguments"]["key"] = json!(key);
        params["_meta"]["toolbooth/callId"] = json!(key);
        let sent = if is_modern {
            post_modern(&gateway.address, &modern(5, "tools/call", params))
        } else {
            session.post(&request(5, "tools/call", params))
        };
        let mut actor = stage.next();
        actor.go();
        let mut answer = sent.answer();
        assert!(answer.is_stream());
        assert_eq!(answer.event().unwrap()["params"]["progress"].as_f64(), Some(1.0));
        wait_until_closed(&gateway, answer.hang_up());
        answers.push((key, actor));
    }
    for (key, mut actor) in answers {
        if key == "streamed modern" {
            assert_eq!(actor.line(), "cancelled");
            assert_cancelled(&place, key);
        } else {
            actor.go();
            actor.go();
            assert_eq!(recorded(&place, key), (Value::Null, json!("TOOL_EXECUTED"), 1));
        }
    }
}

#[test]
fn calls_in_progress_are_answered_after_the_input_ends() {
    let (place, stage) = staged("");
    for mut peer in Peer::over_pipes(&place) {
        let key = peer.name();
        let pending = peer.begin(1, "tools/call", waiting(key));
        let mut actor = stage.next();
        let (Peer::ModernPipe(pipe) | Peer::LegacyPipe(pipe)) = &mut peer else { continue };
        pipe.end_input();
        actor.go();
        assert_eq!(text(&peer.finish(pending)), format!("done {key}"));
        let (Peer::ModernPipe(pipe) | Peer::LegacyPipe(pipe)) = peer else { continue };
        let (rest, exit, words) = pipe.finish();
        assert_eq!((rest, exit), (Vec::new(), Some(0)), "{words}");
    }
}

#[test]
fn a_call_that_does_not_end_with_the_input_is_cancelled() {
    let (place, stage) = staged("");
    let mut pipe = Pipe::session(&place, LEGACY);
    pipe.send(&request(1, "tools/call", waiting("endless")));
    let mut actor = stage.next();
    let (_, exit, words) = pipe.finish();
    assert_eq!(exit, Some(0), "{words}");
    assert_eq!(actor.line(), "cancelled");
    assert_cancelled(&place, "endless");
}

#[test]
fn twenty_calls_at_once_are_answered_each_with_its_own() {
    let (place, stage) = staged("");
    let gateway = place.serve();
    for mut peer in Peer::all(&place, &gateway) {
        twenty(&mut peer, &stage);
    }
}

fn twenty(peer: &mut Peer, stage: &Stage) {
    let pending: Vec<_> = (0..20)
        .map(|n| peer.begin(n, "tools/call", waiting(&format!("{n} {}", peer.name()))))
        .collect();
    // All of them run before one of them ends; they end in another order.
    let mut actors: Vec<_> = (0..20).map(|_| stage.next()).collect();
    actors.sort_by(|one, other| other.key.cmp(&one.key));
    actors.iter_mut().for_each(toolbooth_tests::stage::Actor::go);
    for (n, pending) in pending.into_iter().enumerate() {
        let answer = peer.finish(pending);
        assert_eq!(text(&answer), format!("done {n} {}", peer.name()), "{answer}");
    }
}
