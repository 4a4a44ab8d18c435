//! Serves MCP over standard input and output.
//!
//! Path: 1, 10. Doc: front-doors.md#mcp

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value};
use tokio::io::{AsyncBufRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use toolbooth_contracts::Caller;
use toolbooth_mcp::{Era, code};

use super::client::{self, Client};
use super::codec::{self, Fault, Id, Incoming, Message, Notification, Request};
use super::door::Door;
use super::exchange;
use super::framing::{Messages, Read};
use super::greeting;
use super::in_flight::{InFlight, cancelled};
use super::line_writer;
use super::listen;
use super::notifications::Lists;
use super::outgoing::{Answer, OUTGOING_MAX, Outgoing};
use super::rpc_error::RpcError;
use super::sessions::{BATCHES, Initialize, NO_BATCHES, Session};
use super::standard_input;
use crate::Gateway;
use crate::error::ServeError;
use crate::http::BODY_BYTES_MAX;

/// Messages that may wait to be written.
const WRITES_MAX: usize = 64;
/// The time that requests in progress have after the end of the input.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// Serves one client as `caller` until its input ends, within `toolset` if it is given.
///
/// # Errors
/// [`ServeError`], if the tool set does not exist or the input fails.
pub async fn serve_stdio(
    gateway: Gateway,
    caller: Caller,
    toolset: Option<&str>,
) -> Result<(), ServeError> {
    let toolset: Option<Arc<str>> = toolset.map(Arc::from);
    if let Some(name) = toolset.as_deref().filter(|name| !gateway.catalogue.has_toolset(name)) {
        return Err(ServeError::NoToolSet { name: name.to_owned() });
    }
    let input = standard_input::open().map_err(ServeError::Input)?;
    Pipe::serve(gateway, caller, toolset, input, tokio::io::stdout()).await
}

/// Answers each request of a client with an error until its input ends. A gateway that cannot start
/// uses this: editors show the message of the error, but not standard error.
///
/// # Errors
/// [`ServeError::Input`], if the input or the output fails.
pub async fn refuse_stdio(message: &str) -> Result<(), ServeError> {
    let input = standard_input::open().map_err(ServeError::Input)?;
    let mut messages = Messages::new(input, BODY_BYTES_MAX);
    let mut output = tokio::io::stdout();
    let error = RpcError::new(code::SERVER_ERROR, message);
    loop {
        let answer = match messages.next().await.map_err(ServeError::Input)? {
            Read::End => return Ok(()),
            Read::TooLong(id) => codec::error_answer(id.as_ref(), &error),
            Read::Message(line) => match codec::read(&line) {
                Ok(Incoming::One(Message::Request(request))) => {
                    codec::error_answer(Some(&request.id), &error)
                }
                Ok(Incoming::One(_)) => continue,
                Ok(Incoming::Batch(_)) => codec::error_answer(None, &error),
                Err(fault) => fault.answer(),
            },
        };
        let written = async {
            output.write_all(&answer).await?;
            output.write_all(b"\n").await?;
            output.flush().await
        };
        written.await.map_err(ServeError::Input)?;
    }
}

/// The connection of one client over stdio.
#[derive(Clone)]
struct Pipe {
    door: Door,
    caller: Caller,
    toolset: Option<Arc<str>>,
    /// Requests of both eras.
    in_flight: InFlight,
    /// Cancelled at the end of the input.
    ending: CancellationToken,
    writer: mpsc::Sender<Bytes>,
}

impl Pipe {
    async fn serve(
        gateway: Gateway,
        caller: Caller,
        toolset: Option<Arc<str>>,
        input: impl AsyncBufRead + Unpin,
        output: impl AsyncWrite + Unpin + Send + 'static,
    ) -> Result<(), ServeError> {
        let (writer, messages) = mpsc::channel(WRITES_MAX);
        let writing = tokio::spawn(line_writer::write(messages, output));
        let door = Door::new(gateway);
        let in_flight = InFlight::default();
        let ending = CancellationToken::new();
        let pipe = Self { door, caller, toolset, in_flight, ending, writer };
        let read = pipe.read(input).await;
        pipe.ending.cancel();
        // Requests in progress may still be answered, within a deadline.
        let _ = tokio::time::timeout(END_PATIENCE, pipe.in_flight.empty()).await;
        pipe.in_flight.cancel_all();
        drop(pipe);
        let _ = tokio::time::timeout(END_PATIENCE, writing).await;
        read.map_err(ServeError::Input)
    }

    /// Reads messages until the input ends.
    async fn read(&self, input: impl AsyncBufRead + Unpin) -> std::io::Result<()> {
        let mut session = None;
        let most = self.door.gateway.message_bytes_max;
        let mut messages = Messages::new(input, most);
        loop {
            // A closed output ends the loop, because a client that does not read answers gets none.
            let read = tokio::select! {
                read = messages.next() => read?,
                () = self.writer.closed() => return Ok(()),
            };
            match read {
                Read::End => return Ok(()),
                Read::TooLong(id) => {
                    let message = format!("a message has at most {most} bytes");
                    let error = RpcError::new(code::INVALID_REQUEST, message);
                    self.write(codec::error_answer(id.as_ref(), &error)).await;
                }
                Read::Message(line) => match codec::read(&line) {
                    Ok(Incoming::One(message)) => self.message(&mut session, message).await,
                    Ok(Incoming::Batch(messages)) => self.batch(session.as_ref(), messages).await,
                    Err(fault) => self.write(fault.answer()).await,
                },
            }
        }
    }

    async fn write(&self, message: Bytes) {
        // If the output is closed, the loop in `read` ends.
        let _ = self.writer.send(message).await;
    }

    async fn answer(&self, request: &Request, answered: Result<Value, RpcError>) {
        self.write(codec::answer(&request.id, answered.map(Into::into))).await;
    }

    async fn message(&self, session: &mut Option<Arc<Session>>, message: Message) {
        match message {
            Message::Request(request) => self.request(session, request).await,
            Message::Notification(notification) => self.notified(&notification),
            Message::Answer => (),
        }
    }

    fn notified(&self, notification: &Notification) {
        if let Some(id) = cancelled(notification) {
            self.in_flight.cancel(&id);
        }
    }

    async fn request(&self, session: &mut Option<Arc<Session>>, request: Request) {
        let meta = match request.params.meta() {
            Ok(meta) => meta,
            Err(error) => return self.answer(&request, Err(error)).await,
        };
        let is_modern = match client::era(None, &request.method, &meta) {
            Ok(era) => era == Era::Modern,
            Err(error) => return self.answer(&request, Err(error)).await,
        };
        if !is_modern && request.method == "initialize" {
            let answered = self.initialize(session, &request);
            return self.answer(&request, answered).await;
        }
        let refused = if is_modern {
            self.begin_modern(request, meta)
        } else if let Some(session) = session {
            self.begin_legacy(session, request, meta)
        } else if request.method == "ping" {
            return self.answer(&request, Ok(Value::Object(Map::new()))).await;
        } else {
            let message = "a session begins with `initialize`";
            Err((Some(request.id), RpcError::new(code::INVALID_REQUEST, message)))
        };
        if let Err((id, error)) = refused {
            self.write(codec::error_answer(id.as_ref(), &error)).await;
        }
    }

    fn initialize(
        &self,
        session: &mut Option<Arc<Session>>,
        request: &Request,
    ) -> Result<Value, RpcError> {
        let asked: Initialize = request.params.read()?;
        if session.is_some() {
            return Err(RpcError::new(code::INVALID_REQUEST, "the session has begun already"));
        }
        let version = asked.version();
        let membership =
            self.door.notifications.join(&self.caller, self.toolset.as_ref(), Lists::ALL);
        let (name, id) = (asked.name(), self.door.new_id());
        let client = Client::legacy(self.caller.clone(), name, id, self.toolset.clone());
        let fresh = Arc::new(Session::new(
            "stdio".to_owned(),
            &version,
            client,
            membership,
            self.in_flight.clone(),
        ));
        let (outgoing, mut receiver) = mpsc::channel(1);
        let (stream, stop, writer) = (Arc::clone(&fresh), self.ending.clone(), self.writer.clone());
        tokio::spawn(async move { stream.stream(&stop, std::future::pending(), outgoing).await });
        tokio::spawn(async move {
            while let Some(Outgoing::Notice(message)) = receiver.recv().await {
                if writer.send(message).await.is_err() {
                    return;
                }
            }
        });
        *session = Some(fresh);
        Ok(greeting::initialized(&version))
    }

    /// Begins a request of the legacy era. The error has no id if a request in progress has the
    /// same id.
    fn begin_legacy(
        &self,
        session: &Arc<Session>,
        request: Request,
        meta: Map<String, Value>,
    ) -> Result<(), (Option<Id>, RpcError)> {
        let running = self.begin(&request)?;
        let (pipe, session) = (self.clone(), Arc::clone(session));
        tokio::spawn(async move {
            let (outgoing, receiver) = mpsc::channel(OUTGOING_MAX);
            let (client, stop) = (session.client(), running.stop.clone());
            let running = session.run(&pipe.door, client, request, meta, running, outgoing);
            tokio::join!(running, pipe.forward(receiver, stop));
        });
        Ok(())
    }

    fn begin_modern(
        &self,
        request: Request,
        meta: Map<String, Value>,
    ) -> Result<(), (Option<Id>, RpcError)> {
        let own = |error| (Some(request.id.clone()), error);
        let stated = client::stated(&meta).map_err(own)?;
        let client = Client::modern(self.caller.clone(), stated, self.toolset.clone());
        let filter = if request.method == listen::METHOD {
            Some(listen::filter(&request).map_err(own)?)
        } else {
            None
        };
        let running = self.begin(&request)?;
        let pipe = self.clone();
        tokio::spawn(async move {
            let (outgoing, receiver) = mpsc::channel(OUTGOING_MAX);
            let stop = running.stop.clone();
            let stopped = stop.clone();
            let running = async {
                let door = &pipe.door;
                match filter {
                    Some(filter) => {
                        let ending = pipe.ending.clone();
                        listen::run(door, &client, &request, filter, stop, ending, outgoing).await;
                        drop(running);
                    }
                    None => {
                        let running = Some(running);
                        exchange::run(door, &client, request, meta, stop, running, outgoing).await;
                    }
                }
            };
            tokio::join!(running, pipe.forward(receiver, stopped));
        });
        Ok(())
    }

    fn begin(
        &self,
        request: &Request,
    ) -> Result<super::in_flight::Running, (Option<Id>, RpcError)> {
        self.in_flight.begin(&request.id).map_err(|error| {
            // The client would mistake an answer with an id in use for the answer to the other
            // request.
            let id = (error.code != code::INVALID_REQUEST).then(|| request.id.clone());
            (id, error)
        })
    }

    /// Writes the messages of a request. A cancelled request is not answered: the client no longer
    /// expects it, and may use its id again.
    async fn forward(&self, mut receiver: mpsc::Receiver<Outgoing>, stop: CancellationToken) {
        while let Some(outgoing) = receiver.recv().await {
            match outgoing {
                Outgoing::Answer(_) if stop.is_cancelled() => (),
                Outgoing::Notice(message) => self.write(message).await,
                Outgoing::Answer(Answer { message, .. }) => {
                    self.write(message.whole()).await;
                }
            }
        }
    }

    async fn batch(&self, session: Option<&Arc<Session>>, messages: Vec<Result<Message, Fault>>) {
        let Some(session) = session.filter(|session| session.version == BATCHES) else {
            let error = RpcError::new(code::INVALID_REQUEST, NO_BATCHES);
            return self.write(codec::error_answer(None, &error)).await;
        };
        let (pipe, session) = (self.clone(), Arc::clone(session));
        tokio::spawn(async move {
            let answers = session.batch(&pipe.door, messages, None).await;
            if !answers.is_empty() {
                pipe.write(codec::batch(&answers)).await;
            }
        });
    }
}
