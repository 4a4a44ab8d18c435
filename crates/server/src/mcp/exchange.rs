//! Runs one request, and forwards notifications to the client and cancellation to the tool.
//!
//! Progress and log lines reach the client in order, before the answer.
//!
//! Path: 1, 10. Doc: front-doors.md#progress

use std::future::Future;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use toolbooth_contracts::Conversation;
use toolbooth_contracts::conversation::{Counterpart, LogLine, Progress};

use super::client::Client;
use super::codec::{self, Request};
use super::door::Door;
use super::in_flight::Running;
use super::outgoing::{Answer, Outgoing};

/// Returns the client's progress token, if it is a string or a number.
pub(super) fn progress_token(meta: &Map<String, Value>) -> Option<&Value> {
    meta.get("progressToken").filter(|token| token.is_string() || token.is_number())
}

/// Runs one request to its end. Messages that `outgoing` no longer accepts are dropped; the request
/// continues. Drops `running` before it sends the answer.
pub(super) async fn run(
    door: &Door,
    client: &Client,
    request: Request,
    meta: Map<String, Value>,
    stop: CancellationToken,
    running: Option<Running>,
    outgoing: mpsc::Sender<Outgoing>,
) {
    let (conversation, counterpart) = Conversation::pair(false);
    let conversation = conversation.with_log_level(client.log_level);
    let token = progress_token(&meta).cloned();
    let id = request.id.clone();
    let answering = door.answer(client, request, meta, conversation);
    let answered = relay(answering, &counterpart, token.as_ref(), &stop, &outgoing).await;
    send_answer(running, Answer::new(&id, answered), &outgoing).await;
}

/// Waits for an answer. Until then forwards notifications to the client, and cancellation to the tool. A client that
/// does not read delays its notifications, and not the call.
async fn relay<A>(
    answering: impl Future<Output = A>,
    counterpart: &Counterpart,
    token: Option<&Value>,
    stop: &CancellationToken,
    outgoing: &mpsc::Sender<Outgoing>,
) -> A {
    tokio::pin!(answering);
    let (mut told_to_stop, mut waiting) = (false, None);
    let answered = loop {
        tokio::select! {
            biased;
            answered = &mut answering => break answered,
            () = stop.cancelled(), if !told_to_stop => {
                told_to_stop = true;
                counterpart.cancel.cancel();
            }
            permit = outgoing.reserve(), if waiting.is_some() => {
                // Fails only if the client has disconnected.
                if let (Ok(permit), Some(notice)) = (permit, waiting.take()) {
                    permit.send(notice);
                }
            }
            Ok(progress) = counterpart.progress.recv(), if token.is_some() && waiting.is_none() => {
                waiting = token.map(|token| of_progress(token, progress));
            }
            Ok(line) = counterpart.log.recv(), if waiting.is_none() => waiting = Some(of_log(line)),
        }
    };
    // Notifications from before the answer are sent before it; later ones are dropped.
    for notice in waiting.into_iter().chain(rest(token, counterpart)) {
        // Fails only if the client has disconnected.
        let _ = outgoing.send(notice).await;
    }
    answered
}

/// Frees the id of a request, then sends its answer. A client that has read the answer may use the
/// id again at once.
pub(super) async fn send_answer(
    running: Option<Running>,
    answer: Answer,
    outgoing: &mpsc::Sender<Outgoing>,
) {
    drop(running);
    // Fails only if the client has disconnected.
    let _ = outgoing.send(Outgoing::Answer(answer)).await;
}

/// Waits for the answer and drops the notifications before it.
pub(super) async fn answer_of(mut outgoing: mpsc::Receiver<Outgoing>) -> Option<Bytes> {
    while let Some(one) = outgoing.recv().await {
        if let Outgoing::Answer(Answer { message, .. }) = one {
            return Some(message.whole());
        }
    }
    None
}

/// Returns the notifications that wait.
fn rest<'c>(
    token: Option<&'c Value>,
    counterpart: &'c Counterpart,
) -> impl Iterator<Item = Outgoing> + use<'c> {
    let progress = token.into_iter().flat_map(|token| {
        std::iter::from_fn(|| counterpart.progress.try_recv().ok())
            .map(|progress| of_progress(token, progress))
    });
    progress.chain(std::iter::from_fn(|| counterpart.log.try_recv().ok()).map(of_log))
}

fn of_progress(token: &Value, progress: Progress) -> Outgoing {
    let mut params = json!({ "progressToken": token });
    if let (Ok(Value::Object(said)), Some(params)) =
        (serde_json::to_value(progress), params.as_object_mut())
    {
        params.extend(said);
    }
    notice("notifications/progress", params)
}

fn of_log(line: LogLine) -> Outgoing {
    let mut params = json!({ "level": line.level, "data": line.data });
    if let (Some(logger), Some(params)) = (line.logger, params.as_object_mut()) {
        params.insert("logger".to_owned(), logger.into());
    }
    notice("notifications/message", params)
}

fn notice(method: &str, params: Value) -> Outgoing {
    Outgoing::Notice(codec::notification(method, Some(params)))
}

#[cfg(test)]
mod tests {
    use super::super::codec::Id;
    use super::super::in_flight::InFlight;
    use super::*;

    #[tokio::test]
    async fn an_id_is_free_before_its_answer_is_taken() {
        let (table, id) = (InFlight::default(), Id::of(&json!(7)).unwrap());
        let running = table.begin(&id).unwrap();
        assert!(table.begin(&id).is_err(), "it is in use");
        let (outgoing, mut incoming) = mpsc::channel(1);
        outgoing.send(Outgoing::Notice(Bytes::new())).await.unwrap();
        let answer = Answer::new(&id, Ok(Value::Null.into()));
        let sending = send_answer(Some(running), answer, &outgoing);
        tokio::pin!(sending);
        // The channel is full: the answer waits.
        tokio::select! {
            biased;
            () = &mut sending => panic!("no task has taken the notification"),
            () = std::future::ready(()) => (),
        }
        assert!(table.begin(&id).is_ok());
        assert!(matches!(incoming.recv().await, Some(Outgoing::Notice(_))));
        sending.await;
        assert!(matches!(incoming.recv().await, Some(Outgoing::Answer(_))));
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_delays_only_what_it_is_told() {
        let (conversation, counterpart) = Conversation::pair(false);
        let (outgoing, mut incoming) = mpsc::channel(1);
        outgoing.send(Outgoing::Notice(Bytes::new())).await.unwrap();
        let (stop, token) = (CancellationToken::new(), json!(1));
        let ended = std::cell::Cell::new(false);
        let answering = async {
            for progress in [1.0, 2.0] {
                conversation.progress(Progress { progress, total: None, message: None });
                tokio::task::yield_now().await;
            }
            conversation.cancelled().await;
            ended.set(true);
        };
        let relayed = relay(answering, &counterpart, Some(&token), &stop, &outgoing);
        tokio::pin!(relayed);
        stop.cancel();
        for _ in 0..9 {
            assert!(futures_util::poll!(&mut relayed).is_pending(), "what it is told waits");
        }
        assert!(ended.get(), "the call does not wait");
        assert!(matches!(incoming.recv().await, Some(Outgoing::Notice(_))));
        let told = async {
            for progress in [1.0, 2.0] {
                let Some(Outgoing::Notice(told)) = incoming.recv().await else { panic!("told") };
                let told: Value = serde_json::from_slice(&told).unwrap();
                assert_eq!(told["params"]["progress"], progress, "{told}");
            }
        };
        tokio::join!(relayed, told);
    }
}
