//! Runs one request, and forwards notifications to the client and cancellation to the tool.
//!
//! Progress and log lines reach the client in order, before the answer.
//!
//! Path: 1, 10. Doc: front-doors.md#progress

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
    tokio::pin!(answering);
    let mut told_to_stop = false;
    let answered = loop {
        tokio::select! {
            biased;
            Ok(progress) = counterpart.progress.recv(), if token.is_some() => {
                tell_progress(&outgoing, token.as_ref(), progress).await;
            }
            Ok(line) = counterpart.log.recv() => tell_log(&outgoing, line).await,
            answered = &mut answering => break answered,
            () = stop.cancelled(), if !told_to_stop => {
                told_to_stop = true;
                counterpart.cancel.cancel();
            }
        }
    };
    // Notifications from before the answer are sent before it; later ones are dropped.
    send_rest(&outgoing, token.as_ref(), &counterpart).await;
    send_answer(running, Answer::new(&id, answered), &outgoing).await;
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

async fn send_rest(
    outgoing: &mpsc::Sender<Outgoing>,
    token: Option<&Value>,
    counterpart: &Counterpart,
) {
    while let Ok(progress) = counterpart.progress.try_recv() {
        tell_progress(outgoing, token, progress).await;
    }
    while let Ok(line) = counterpart.log.try_recv() {
        tell_log(outgoing, line).await;
    }
}

async fn tell_progress(
    outgoing: &mpsc::Sender<Outgoing>,
    token: Option<&Value>,
    progress: Progress,
) {
    let Some(token) = token else { return };
    let mut params = json!({ "progressToken": token });
    if let (Ok(Value::Object(said)), Some(params)) =
        (serde_json::to_value(progress), params.as_object_mut())
    {
        params.extend(said);
    }
    tell(outgoing, "notifications/progress", params).await;
}

async fn tell_log(outgoing: &mpsc::Sender<Outgoing>, line: LogLine) {
    let mut params = json!({ "level": line.level, "data": line.data });
    if let (Some(logger), Some(params)) = (line.logger, params.as_object_mut()) {
        params.insert("logger".to_owned(), logger.into());
    }
    tell(outgoing, "notifications/message", params).await;
}

async fn tell(outgoing: &mpsc::Sender<Outgoing>, method: &str, params: Value) {
    let message = codec::notification(method, Some(params));
    // Fails only if the client has disconnected.
    let _ = outgoing.send(Outgoing::Notice(message)).await;
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
            () = &mut sending => panic!("nobody has taken the notification"),
            () = std::future::ready(()) => (),
        }
        assert!(table.begin(&id).is_ok());
        assert!(matches!(incoming.recv().await, Some(Outgoing::Notice(_))));
        sending.await;
        assert!(matches!(incoming.recv().await, Some(Outgoing::Answer(_))));
    }
}
