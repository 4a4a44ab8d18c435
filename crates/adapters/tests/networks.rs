//! Tests the network of contained programs, as root and as an ordinary user. Public, private,
//! link-local and metadata hosts are in a network namespace of the tests.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use toolbooth_adapters::CommandLine;
use toolbooth_adapters::egress::NetworkRules;
use toolbooth_adapters::launcher::Launcher;
use toolbooth_adapters::net_guard::Resolver;
use toolbooth_adapters::process::{self, Bounds};
use toolbooth_contracts::execution_log::Observations;
use toolbooth_contracts::sandbox::{FsProfile, NetProfile, SandboxProfile};
use toolbooth_contracts::{Conversation, ExecutionLog};

/// The arguments with which this program starts itself.
const HOSTS: &str = "__hosts";
const TRY: &str = "__try";
const INSIDE: &str = "__inside";

/// Addresses of remote hosts.
const PUBLIC: &str = "93.184.216.34";
const PUBLIC_V6: &str = "2606:2800:220:1::1";
const MIRROR: &str = "198.51.100.7";
const INNER: [&str; 6] =
    ["10.1.2.3", "172.16.4.5", "192.168.7.7", "169.254.169.254", "100.64.0.9", "fd00:1::1"];
/// The gateway's own door.
const DOOR: &str = "127.0.0.1:7717";

/// The door, and services of the machine: programs outside of a sandbox reach all of them.
const HERE: [&str; 3] = [DOOR, "127.0.0.1:443", "93.184.216.99:443"];

/// Acts as hosts that answer each connection with its destination address.
fn be_the_hosts() {
    for port in [80, 443, 5432] {
        let listener = TcpListener::bind(("::", port)).unwrap();
        std::thread::spawn(move || answer_all(&listener));
    }
    println!("ready");
    // The pipe closes when the parent process ends.
    let _ = std::io::stdin().read(&mut [0u8]);
}

fn answer_all(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        let mut stream: TcpStream = stream;
        let to = stream.local_addr().unwrap();
        let to = SocketAddr::new(to.ip().to_canonical(), to.port());
        let _ = writeln!(stream, "{to}");
    }
}

/// Prints the result of each attempt of a contained program, one line each.
fn try_all(attempts: &[String]) {
    for attempt in attempts {
        let (kind, rest) = attempt.split_once(' ').unwrap();
        let got = match kind {
            "connect" => connect(rest.parse().unwrap()),
            "name" => named(rest),
            "ask" => ask(rest),
            _ => panic!("there is no `{kind}`"),
        };
        println!("{}", got.unwrap_or_else(|error| format!("error: {error}")));
    }
}

fn connect(to: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(10))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text.trim().to_owned())
}

fn named(host: &str) -> std::io::Result<String> {
    let to: Vec<SocketAddr> = host.to_socket_addrs()?.collect();
    connect(to[0])
}

/// Queries one server for the address of one name, without the system's resolver.
fn ask(words: &str) -> std::io::Result<String> {
    let (server, name) = words.split_once(' ').unwrap();
    let bind = if server.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(bind)?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    // A connected socket drops responses from any other address.
    socket.connect(server)?;
    let mut question = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        question.push(u8::try_from(label.len()).unwrap());
        question.extend_from_slice(label.as_bytes());
    }
    question.extend_from_slice(&[0, 0, 1, 0, 1]);
    socket.send(&question)?;
    let mut answer = [0u8; 512];
    let length = socket.recv(&mut answer)?;
    let (code, count) = (answer[3] & 0xf, answer[7]);
    let last = &answer[length - 4..length];
    Ok(match (code, count) {
        (0, 1..) => format!("{}.{}.{}.{}", last[0], last[1], last[2], last[3]),
        (code, _) => format!("code {code}"),
    })
}

fn names() -> Resolver {
    let names = BTreeMap::from([
        ("public.example", vec![PUBLIC, PUBLIC_V6]),
        ("inner.example", vec!["10.1.2.3"]),
        ("metadata.example", vec!["169.254.169.254"]),
        ("mirror.example", vec![MIRROR]),
        ("here.example", vec!["127.0.0.1"]),
    ]);
    Arc::new(move |host, port| {
        let found = names.get(host.as_str()).cloned();
        Box::pin(async move {
            let found = found.ok_or_else(|| std::io::Error::other("there is no such name"))?;
            let address = |text: &str| SocketAddr::new(text.parse::<IpAddr>().unwrap(), port);
            Ok(found.into_iter().map(address).collect())
        })
    })
}

/// Makes attempts in a contained program; returns their results and the recorded observations.
fn contained(hosts: &[&str], allowed: &[&str], attempts: &[&str]) -> (Vec<String>, Observations) {
    let allowed: Vec<String> = allowed.iter().map(|range| (*range).to_owned()).collect();
    let rules = NetworkRules::parse(&allowed).unwrap().with_resolver(names());
    rules.doors().add(DOOR.parse().unwrap());
    let launcher = Launcher::of_this_program(None).with_network(rules);
    let this = std::env::current_exe().unwrap().display().to_string();
    let mut argv = vec![this.as_str(), TRY];
    argv.extend(attempts);
    let line = CommandLine {
        argv: argv.into_iter().map(Into::into).collect(),
        cwd: Some("/usr".into()),
        ..CommandLine::default()
    };
    let profile = SandboxProfile {
        fs: Some(FsProfile { tmp_mb: Some(1), ..FsProfile::default() }),
        net: Some(NetProfile { hosts: hosts.iter().map(|host| (*host).to_owned()).collect() }),
        ..SandboxProfile::default()
    };
    let execution_log = ExecutionLog::default();
    let bounds = Bounds {
        profile: Some(&profile),
        timeout: Some(Duration::from_secs(60)),
        execution_log: execution_log.clone(),
        ..Bounds::free(100_000)
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let finished = runtime.block_on(async {
        let (conversation, _cancel) = Conversation::detached();
        process::run(&launcher, &line, Vec::new(), bounds, &conversation).await.unwrap()
    });
    let text = String::from_utf8(finished.stdout).unwrap();
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let said = String::from_utf8_lossy(&finished.stderr).into_owned();
    assert_eq!(lines.len(), attempts.len(), "{:?}: {said}", finished.ended);
    (lines, execution_log.take())
}

fn public_hosts_are_reached() {
    let v6 = format!("[{PUBLIC_V6}]:443");
    let attempts = [
        format!("connect {PUBLIC}:443"),
        format!("connect {v6}"),
        "name public.example:443".to_owned(),
        format!("connect {PUBLIC}:80"),
    ];
    let attempts: Vec<&str> = attempts.iter().map(String::as_str).collect();
    let (got, observed) = contained(&["*"], &[], &attempts);
    assert_eq!(got[..2], [format!("{PUBLIC}:443"), v6.clone()]);
    assert!(got[2] == format!("{PUBLIC}:443") || got[2] == v6, "{got:?}");
    // A port that the profile does not name has no listener.
    assert!(got[3].starts_with("error"), "{got:?}");
    assert!(observed.egress.is_empty(), "{observed:?}");
    let reached: Vec<_> =
        observed.reached.iter().map(|one| (one.host.as_str(), one.port)).collect();
    assert_eq!(reached, [(PUBLIC, 443), (PUBLIC_V6, 443), ("public.example", 443)]);
    let (got, _) = contained(&["*:80"], &[], &[attempts[3], attempts[0]]);
    assert_eq!(got[0], format!("{PUBLIC}:80"));
    assert!(got[1].starts_with("error"), "{got:?}");
}

fn what_is_inside_is_not_reached() {
    let bracketed = |host: &&str| match host.contains(':') {
        true => format!("connect [{host}]:443"),
        false => format!("connect {host}:443"),
    };
    let mut attempts: Vec<String> = INNER.iter().map(bracketed).collect();
    attempts.extend([
        "connect 127.0.0.1:443".to_owned(),
        "connect [::1]:443".to_owned(),
        "connect 127.9.9.9:443".to_owned(),
        // The machine's own address, and its neighbour on the same link.
        "connect 10.99.0.1:443".to_owned(),
        "connect 10.99.0.2:443".to_owned(),
        "connect 93.184.216.99:443".to_owned(),
        "connect [::ffff:10.1.2.3]:443".to_owned(),
        "name inner.example:443".to_owned(),
        "name metadata.example:443".to_owned(),
        "name here.example:443".to_owned(),
        format!("connect {MIRROR}:443"),
        format!("connect {DOOR}"),
    ]);
    let attempts: Vec<&str> = attempts.iter().map(String::as_str).collect();
    let (got, observed) = contained(&["*", "*:7717"], &["127.0.0.1/32"], &attempts);
    // Addresses that an operator allows are reached, except the door.
    for (attempt, got) in attempts.iter().zip(&got) {
        let passes = *attempt == "connect 127.0.0.1:443" || *attempt == "name here.example:443";
        assert_eq!(!got.starts_with("error"), passes, "{attempt}: {got}");
    }
    let reasons: BTreeMap<&str, &str> =
        observed.egress.iter().map(|one| (one.host.as_str(), one.reason.as_str())).collect();
    for (host, reason) in [
        ("10.1.2.3", "private"),
        ("169.254.169.254", "link-local"),
        ("100.64.0.9", "shared"),
        ("fd00:1::1", "unique local"),
        ("127.9.9.9", "loopback"),
        ("::1", "loopback"),
        ("93.184.216.99", "this machine"),
        ("inner.example", "private"),
        ("metadata.example", "link-local"),
        (MIRROR, "special-purpose"),
    ] {
        assert!(reasons.get(host).is_some_and(|told| told.contains(reason)), "{host}: {reasons:?}");
        assert!(reasons[host].contains("allow_addresses"), "{reasons:?}");
    }
    let door = observed.egress.iter().find(|one| one.port == 7717).unwrap();
    assert!(door.reason.contains("the gateway itself"), "{door:?}");
}

fn addresses_that_an_operator_allows_are_reached() {
    let attempts = ["name mirror.example:443", "connect 10.1.2.3:443", "connect 192.168.7.7:443"];
    let (got, _) = contained(&["*"], &["198.51.100.0/24", "10.1.2.3"], &attempts);
    assert_eq!(got[..2], [format!("{MIRROR}:443"), "10.1.2.3:443".to_owned()]);
    assert!(got[2].starts_with("error"), "{got:?}");
}

fn a_list_of_names_leads_nowhere_else() {
    let attempts = [
        "connect 93.184.216.34:443",
        "name public.example:443",
        "name public.example:80",
        "name mirror.example:443",
        "ask 127.0.0.1:53 mirror.example",
        "connect 10.1.2.3:5432",
        "connect 192.168.7.7:5432",
    ];
    let (got, observed) = contained(&["public.example:443", "10.1.2.3:5432"], &[], &attempts);
    assert!(got[0].starts_with("error"), "before its name is known an address is none: {got:?}");
    assert!(got[1].ends_with(":443"), "{got:?}");
    for refused in [2, 3, 6] {
        assert!(got[refused].starts_with("error"), "{}: {}", attempts[refused], got[refused]);
    }
    assert_eq!(got[4], "code 5");
    // An address that an operator names literally is allowed as such.
    assert_eq!(got[5], "10.1.2.3:5432");
    let refused: Vec<_> = observed.egress.iter().map(|one| (one.host.as_str(), one.port)).collect();
    assert_eq!(
        refused,
        [(PUBLIC, 443), ("mirror.example", 53), ("192.168.7.7", 5432)],
        "{observed:?}"
    );
}

fn questions_are_answered_from_the_address_that_was_asked() {
    let attempts = [
        "ask 127.0.0.1:53 public.example",
        "ask 8.8.8.8:53 public.example",
        "ask [2001:4860:4860::8888]:53 public.example",
        "ask 8.8.8.8:53 no.such.example",
        "ask 8.8.8.8:54 public.example",
    ];
    let (got, _) = contained(&["*"], &[], &attempts);
    assert_eq!(got[..4], [PUBLIC, PUBLIC, PUBLIC, "code 3"]);
    assert!(got[4].starts_with("error"), "{got:?}");
}

fn run(arguments: &[&str]) {
    let (program, rest) = arguments.split_first().unwrap();
    let status = Command::new(program).args(rest).status().unwrap();
    assert!(status.success(), "{arguments:?}");
}

/// Returns the command that adds an address. IPv6 addresses skip duplicate detection, since no other
/// host has them, and are usable at once.
fn add_address<'w>(address: &'w str, device: &'w str) -> Vec<&'w str> {
    let mut words = vec!["ip", "addr", "add", address, "dev", device];
    words.extend(address.contains(':').then_some("nodad"));
    words
}

/// Sets up two networks: this one, which is the gateway's, and that of the hosts.
fn set_up() -> Child {
    let mut hosts = Command::new("unshare")
        .arg("--net")
        .arg(std::env::current_exe().unwrap())
        .arg(HOSTS)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(hosts.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let pid = hosts.id().to_string();
    run(&["ip", "link", "set", "lo", "up"]);
    run(&["ip", "link", "add", "gate0", "type", "veth", "peer", "name", "host0", "netns", &pid]);
    for address in ["10.99.0.1/24", "93.184.216.99/32", "fd00:99::1/64"] {
        run(&add_address(address, "gate0"));
    }
    run(&["ip", "link", "set", "gate0", "up"]);
    let there = |words: &[&str]| {
        let inside = ["nsenter", "-t", &pid, "-n", "ip"];
        run(&[&inside[..], words].concat());
    };
    let elsewhere = INNER.iter().chain(&[PUBLIC, PUBLIC_V6, MIRROR]);
    for address in elsewhere.chain(&["10.99.0.2/24", "fd00:99::2/64"]) {
        there(&add_address(address, "host0")[1..]);
    }
    there(&["link", "set", "host0", "up"]);
    run(&["ip", "route", "add", "default", "via", "10.99.0.2"]);
    run(&["ip", "-6", "route", "add", "default", "via", "fd00:99::2"]);
    hosts
}

type Test = fn();

const TESTS: &[(&str, Test)] = &[
    ("public_hosts_are_reached", public_hosts_are_reached),
    ("what_is_inside_is_not_reached", what_is_inside_is_not_reached),
    (
        "addresses_that_an_operator_allows_are_reached",
        addresses_that_an_operator_allows_are_reached,
    ),
    ("a_list_of_names_leads_nowhere_else", a_list_of_names_leads_nowhere_else),
    (
        "questions_are_answered_from_the_address_that_was_asked",
        questions_are_answered_from_the_address_that_was_asked,
    ),
];

/// Runs the tests as the current user, in the current network.
fn inside() {
    for address in HERE {
        assert_eq!(connect(address.parse().unwrap()).unwrap(), address);
    }
    for host in INNER.iter().chain(&[PUBLIC, PUBLIC_V6, MIRROR]) {
        let to = SocketAddr::new(host.parse().unwrap(), 443);
        assert_eq!(connect(to).unwrap(), to.to_string(), "without a sandbox all are reached");
    }
    let trials = TESTS.iter().map(|(name, test)| {
        let test = *test;
        Trial::test(*name, move || {
            test();
            Ok::<_, Failed>(())
        })
    });
    let arguments = Arguments::from_iter(["networks", "--test-threads", "1"]);
    libtest_mimic::run(&arguments, trials.collect()).exit();
}

/// Runs this program in the role that the tests start it for: hosts, attempts, or tests in their own
/// network.
pub(crate) fn entry() {
    let words: Vec<String> = std::env::args().collect();
    match words.get(1).map(String::as_str) {
        Some(HOSTS) => be_the_hosts(),
        Some(TRY) => try_all(&words[2..]),
        Some(INSIDE) if words.get(2).is_none() => {
            // This network belongs to the tests, which run in it as both users.
            let _hosts = set_up();
            for address in HERE {
                let listener = TcpListener::bind(address).unwrap();
                std::thread::spawn(move || answer_all(&listener));
            }
            let this = std::env::current_exe().unwrap();
            let mut failed = false;
            for ordinary in [false, true] {
                println!("as {}", if ordinary { "an ordinary user" } else { "root" });
                let mut command = Command::new(&this);
                command.args([INSIDE, "run"]);
                if ordinary {
                    command.uid(65_534).gid(65_534);
                }
                failed |= !command.status().unwrap().success();
            }
            std::process::exit(i32::from(failed));
        }
        Some(INSIDE) => inside(),
        _ => return,
    }
    std::process::exit(0);
}

/// Returns the tests of this module.
pub(crate) fn trials() -> Vec<Trial> {
    let trial = Trial::test("networks::networks_of_contained_programs", || {
        let status = Command::new("unshare")
            .arg("--net")
            .arg(std::env::current_exe()?)
            .arg(INSIDE)
            .status()?;
        status.success().then_some(()).ok_or_else(|| Failed::from("see above"))
    });
    let root = rustix::process::geteuid().is_root();
    if !root {
        assert!(std::env::var_os("CI").is_none(), "CI runs this as root");
        eprintln!("SKIPPED: root, for networks of one's own");
    }
    vec![trial.with_ignored_flag(!root)]
}
