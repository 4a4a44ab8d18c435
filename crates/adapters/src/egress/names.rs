//! Answers DNS queries (RFC 1035) of a contained program with the gateway's own resolver.
//!
//! Only names that the profile covers are looked up. The addresses are returned unchecked; each is
//! checked when a connection is made.
//!
//! Path: 7. Doc: execution.md#the-network-of-a-contained-program

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{RData, Record, RecordType};
use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::ProgramNetwork;
use super::relay::accept;

/// Maximum bytes of a query; no supported query is longer.
const QUESTION_BYTES_MAX: usize = 4096;
/// Maximum concurrent queries over UDP; further ones are dropped, and programs repeat them.
const QUESTIONS_MAX: usize = 64;
/// Maximum concurrent connections for queries; programs use datagrams, except for long responses.
const CONVERSATIONS_MAX: usize = 4;
/// Idle timeout of a connection.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Maximum addresses of one response, which then fits into 512 bytes.
const ADDRESSES_MAX: usize = 8;
/// How long a response can be cached, in seconds.
const TTL_S: u32 = 30;
/// An address to test for an IPv6 route; nothing is sent to it.
const ANY_V6: &str = "[2001:4860:4860::8888]:53";

/// A datagram socket that reports the destination address of each datagram.
pub(super) struct Datagrams {
    socket: tokio::net::UdpSocket,
    state: UdpSocketState,
}

/// A datagram: its content, its sender, and its destination address.
struct Datagram {
    question: Vec<u8>,
    from: SocketAddr,
    to: Option<IpAddr>,
}

impl Datagrams {
    pub(super) fn of(fd: OwnedFd) -> io::Result<Self> {
        let socket = UdpSocket::from(fd);
        socket.set_nonblocking(true)?;
        let socket = tokio::net::UdpSocket::from_std(socket)?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        Ok(Self { socket, state })
    }

    async fn receive(&self) -> io::Result<Datagram> {
        let receive = || {
            let mut buffer = [0u8; QUESTION_BYTES_MAX];
            let mut meta = [RecvMeta::default()];
            let mut slices = [io::IoSliceMut::new(&mut buffer)];
            self.state.recv(UdpSockRef::from(&self.socket), &mut slices, &mut meta)?;
            let [meta] = meta;
            let question = buffer.get(..meta.len).unwrap_or_default().to_vec();
            Ok(Datagram { question, from: meta.addr, to: meta.dst_ip })
        };
        self.socket.async_io(Interest::READABLE, receive).await
    }

    async fn answer(&self, datagram: &Datagram, answer: &[u8]) -> io::Result<()> {
        let transmit = Transmit {
            destination: datagram.from,
            ecn: None,
            contents: answer,
            segment_size: None,
            // Programs drop a response from an address that they did not query.
            src_ip: datagram.to,
        };
        let send = || self.state.try_send(UdpSockRef::from(&self.socket), &transmit);
        self.socket.async_io(Interest::WRITABLE, send).await
    }
}

pub(super) async fn serve_datagrams(passage: Arc<ProgramNetwork>, datagrams: Datagrams) {
    let datagrams = Arc::new(datagrams);
    let slots = Arc::new(Semaphore::new(QUESTIONS_MAX));
    let mut answering = JoinSet::new();
    loop {
        let Ok(datagram) = datagrams.receive().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        while answering.try_join_next().is_some() {}
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else { continue };
        let (passage, datagrams) = (Arc::clone(&passage), Arc::clone(&datagrams));
        answering.spawn(async move {
            if let Some(answer) = answer(&passage, &datagram.question).await {
                // A program that has ended needs no response.
                let _ = datagrams.answer(&datagram, &answer).await;
            }
            drop(slot);
        });
    }
}

pub(super) async fn serve_streams(passage: Arc<ProgramNetwork>, listener: TcpListener) {
    accept(passage, listener, CONVERSATIONS_MAX, converse).await;
}

/// Answers queries over a connection, each with its length before it (RFC 1035, 4.2.2).
async fn converse(passage: Arc<ProgramNetwork>, mut stream: TcpStream) {
    loop {
        let reading = async {
            let length = usize::from(stream.read_u16().await?);
            if length > QUESTION_BYTES_MAX {
                return Err(io::Error::other("the question is too long"));
            }
            let mut question = vec![0u8; length];
            stream.read_exact(&mut question).await?;
            Ok::<_, io::Error>(question)
        };
        let Ok(Ok(question)) = tokio::time::timeout(SILENCE_MAX, reading).await else { return };
        let Some(answer) = answer(&passage, &question).await else { return };
        let Ok(length) = u16::try_from(answer.len()) else { return };
        let bytes = [&length.to_be_bytes()[..], &answer].concat();
        let writing = tokio::time::timeout(SILENCE_MAX, stream.write_all(&bytes));
        if !matches!(writing.await, Ok(Ok(()))) {
            return;
        }
    }
}

/// Returns the response to a query; `None` = the bytes are not a query.
async fn answer(passage: &ProgramNetwork, bytes: &[u8]) -> Option<Vec<u8>> {
    let question = Message::from_vec(bytes).ok()?;
    if question.metadata.message_type != MessageType::Query {
        return None;
    }
    let mut answer = Message::response(question.metadata.id, question.metadata.op_code);
    answer.metadata.recursion_desired = question.metadata.recursion_desired;
    answer.metadata.recursion_available = true;
    match question.queries.as_slice() {
        [query] if question.metadata.op_code == OpCode::Query => {
            let name = query.name().to_ascii();
            let name = name.strip_suffix('.').unwrap_or(&name).to_ascii_lowercase();
            match look_up(passage, &name, query.query_type()).await {
                Ok(addresses) => {
                    answer.add_answers(addresses.into_iter().map(|address| {
                        let data = match address {
                            IpAddr::V4(address) => RData::A(A(address)),
                            IpAddr::V6(address) => RData::AAAA(AAAA(address)),
                        };
                        Record::from_rdata(query.name().clone(), TTL_S, data)
                    }));
                }
                Err(code) => answer.metadata.response_code = code,
            }
            answer.add_query(query.clone());
        }
        _ => answer.metadata.response_code = ResponseCode::NotImp,
    }
    answer.to_vec().ok()
}

/// Returns the addresses of a name; none for record types that are not looked up.
async fn look_up(
    passage: &ProgramNetwork,
    name: &str,
    kind: RecordType,
) -> Result<Vec<IpAddr>, ResponseCode> {
    if !passage.may_ask(name) {
        let reason = super::unlisted(name, 443);
        passage.record_refusal(name, toolbooth_launcher::DNS_PORT, &reason.to_string());
        return Err(ResponseCode::Refused);
    }
    let wanted: fn(&IpAddr) -> bool = match kind {
        RecordType::A => IpAddr::is_ipv4,
        // Without a route, programs would first try addresses that cannot be reached.
        RecordType::AAAA if has_v6() => IpAddr::is_ipv6,
        _ => return Ok(Vec::new()),
    };
    let found = match passage.look_up(name, 0).await {
        Ok(found) => found,
        // A repeated query may succeed.
        Err(error) if error.kind() == ErrorKind::TimedOut => return Err(ResponseCode::ServFail),
        Err(error) => {
            tracing::debug!(name, %error, "a name is not found");
            return Err(ResponseCode::NXDomain);
        }
    };
    let mut addresses: Vec<IpAddr> =
        found.into_iter().map(|found| found.ip()).filter(wanted).collect();
    addresses.dedup();
    addresses.truncate(ADDRESSES_MAX);
    passage.remember(name, &addresses);
    Ok(addresses)
}

/// Whether this machine has a route for IPv6.
fn has_v6() -> bool {
    UdpSocket::bind("[::]:0").is_ok_and(|socket| socket.connect(ANY_V6).is_ok())
}

#[cfg(test)]
mod tests {
    use toolbooth_contracts::ExecutionLog;

    use super::super::{AllowList, NetworkRules};
    use super::*;

    fn passage(hosts: &[&str]) -> Arc<ProgramNetwork> {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let rules = NetworkRules::default().with_resolver(Arc::new(|name, port| {
            Box::pin(async move {
                match name.as_str() {
                    "a.example" => Ok(vec![SocketAddr::new([192, 0, 2, 7].into(), port)]),
                    _ => Err(io::Error::other("there is no such name")),
                }
            })
        }));
        let allowed = AllowList::parse(&hosts).unwrap();
        ProgramNetwork::new(allowed, rules, ExecutionLog::default(), "p".to_owned())
    }

    /// Returns a query as programs send it.
    fn question(name: &str, kind: u8) -> Vec<u8> {
        let mut bytes = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            bytes.push(u8::try_from(label.len()).unwrap());
            bytes.extend_from_slice(label.as_bytes());
        }
        bytes.extend_from_slice(&[0, 0, kind, 0, 1]);
        bytes
    }

    #[tokio::test]
    async fn questions_get_addresses_or_a_code() {
        let open = passage(&["*"]);
        let listed = passage(&["a.example:443"]);
        for (passage, name, kind, code, count) in [
            (&open, "A.Example", 1, 0, 1),
            (&open, "gone.example", 1, 3, 0),
            // Mail exchange records are not looked up.
            (&open, "a.example", 15, 0, 0),
            (&listed, "a.example", 1, 0, 1),
            (&listed, "other.example", 1, 5, 0),
            (&listed, "other.example", 15, 5, 0),
        ] {
            let bytes = answer(passage, &question(name, kind)).await.unwrap();
            let answer = Message::from_vec(&bytes).unwrap();
            assert_eq!(u16::from(answer.metadata.response_code), code, "{name} {kind}");
            assert_eq!(answer.answers.len(), count, "{name} {kind}");
            assert_eq!((answer.metadata.id, answer.queries.len()), (7, 1));
        }
        let mut twice = question("a.example", 1);
        twice[5] = 2;
        twice.extend_from_slice(&question("a.example", 1)[12..]);
        let bytes = answer(&open, &twice).await.unwrap();
        assert_eq!(Message::from_vec(&bytes).unwrap().metadata.response_code, ResponseCode::NotImp);
        let mut reply = question("a.example", 1);
        reply[2] |= 0x80;
        assert_eq!(answer(&open, &reply).await, None, "an answer is no question");
    }

    #[tokio::test]
    async fn no_bytes_break_it() {
        let open = passage(&["*"]);
        let whole = question("a.example", 1);
        let mut state = 1u64;
        let mut chance = |most: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(state >> 33).unwrap() % most
        };
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..=chance(6) {
                let at = chance(bytes.len());
                match chance(3) {
                    0 => bytes[at] = u8::try_from(chance(256)).unwrap(),
                    1 => bytes.truncate(at.max(1)),
                    _ => bytes.insert(at, u8::try_from(chance(256)).unwrap()),
                }
            }
            let _ = answer(&open, &bytes).await;
        }
    }
}
