use std::io::ErrorKind;

use toolbooth_contracts::ExecutionLog;

use super::program_network::{LOOKUPS_OF_PROGRAM_MAX, NAMED_MAX, NAMES_MAX};
use super::*;

fn list(entries: &[&str]) -> AllowList {
    let entries: Vec<String> = entries.iter().map(|entry| (*entry).to_owned()).collect();
    AllowList::parse(&entries).unwrap()
}

#[test]
fn only_what_is_named_passes() {
    let list =
        list(&["api.example.com:443", "*.cdn.example:*", "192.0.2.1:80", "[2001:db8::1]:80"]);
    for (host, port) in [
        ("api.example.com", 443),
        ("API.example.com.", 443),
        ("a.b.cdn.example", 1),
        ("192.0.2.1", 80),
        ("[2001:db8:0::1]", 80),
    ] {
        assert!(list.names(host, Some(port)), "{host}");
    }
    for (host, port) in [
        ("api.example.com", 80),
        ("api.example.com.evil", 443),
        ("xapi.example.com", 443),
        ("cdn.example", 443),
        ("evilcdn.example", 443),
        ("192.0.2.2", 80),
        ("", 443),
        ("*", 443),
    ] {
        assert!(!list.names(host, Some(port)), "{host}:{port}");
    }
    for entry in
        ["example.com", "https://example.com:443", "a b:1", ":1", "a:b", "*.:1", "*:*", "*:x"]
    {
        assert!(AllowList::parse(&[entry.to_owned()]).is_err(), "{entry}");
    }
}

#[test]
fn every_public_host_is_named_by_port() {
    let all = list(&["*", "*:80", "db.example:5432"]);
    assert!(all.opens(443) && all.opens(80) && !all.opens(5432) && all.is_everywhere());
    assert_eq!(all.ports(), [80, 443, 5432]);
    assert!(all.relay().unwrap().proxy && !list(&["*"]).relay().unwrap().proxy);
    assert_eq!(list(&[]).relay(), None);
    assert_eq!(list(&["a.example:*"]).ports(), [443]);
}

fn passage(entries: &[&str], allowed: &[&str]) -> Arc<ProgramNetwork> {
    let allowed: Vec<String> = allowed.iter().map(|range| (*range).to_owned()).collect();
    let rules = NetworkRules::parse(&allowed).unwrap();
    rules.doors().add("127.0.0.1:7717".parse().unwrap());
    ProgramNetwork::new(list(entries), rules, ExecutionLog::default(), "p".to_owned())
}

#[test]
fn destinations_are_judged_by_their_true_address() {
    let open = passage(&["*", "127.0.0.1:5432", "*:7717"], &["198.51.100.0/24", "127.0.0.1/32"]);
    for (to, passes) in [
        ("93.184.216.34:443", true),
        ("93.184.216.34:80", false),
        ("198.51.100.7:443", true),
        ("203.0.113.7:443", false),
        ("10.0.0.1:443", false),
        ("169.254.169.254:443", false),
        ("[::ffff:10.0.0.1]:443", false),
        ("[fe80::1]:443", false),
        ("[2606:2800:220:1::1]:443", true),
        ("127.0.0.1:5432", true),
        // The gateway's own door is refused, even if everything else is allowed.
        ("127.0.0.1:7717", false),
        ("[::ffff:127.0.0.1]:7717", false),
        ("0.0.0.0:443", false),
        ("[::]:443", false),
    ] {
        assert_eq!(open.judge(to.parse().unwrap()).is_some(), passes, "{to}");
    }
    let named = passage(&["api.example:443"], &[]);
    let to: SocketAddr = "93.184.216.34:443".parse().unwrap();
    assert!(named.judge(to).is_none());
    named.remember("api.example", &[to.ip()]);
    assert_eq!(named.judge(to).as_deref(), Some("api.example"));
    named.remember("other.example", &[to.ip()]);
    assert_eq!(named.judge(to).as_deref(), Some("api.example"));
    // A listed name with an internal address is refused.
    named.remember("api.example", &["10.0.0.1".parse().unwrap()]);
    assert!(named.judge("10.0.0.1:443".parse().unwrap()).is_none());
}

#[test]
fn names_are_remembered_within_bounds() {
    let passage = passage(&["*"], &[]);
    for number in 0..u32::try_from(NAMED_MAX).unwrap() + 10 {
        let address: IpAddr = std::net::Ipv4Addr::from_bits(number).into();
        for name in 0..=NAMES_MAX {
            passage.remember(&format!("n{name}"), &[address]);
        }
    }
    let named = lock(&passage.named);
    assert_eq!((named.by_address.len(), named.order.len()), (NAMED_MAX, NAMED_MAX));
    assert!(named.by_address.values().all(|names| names.len() == NAMES_MAX));
}

/// Look-ups that never end occupy only the share of one program.
#[tokio::test(start_paused = true)]
async fn look_ups_of_a_program_are_bounded() {
    let rules =
        NetworkRules::default().with_resolver(Arc::new(|_, _| Box::pin(std::future::pending())));
    let passage = |rules: &NetworkRules| {
        let execution_log = ExecutionLog::default();
        Arc::new(ProgramNetwork::new(list(&["*"]), rules.clone(), execution_log, "p".to_owned()))
    };
    let (greedy, other) = (passage(&rules), passage(&rules));
    for _ in 0..LOOKUPS_OF_PROGRAM_MAX {
        let greedy = Arc::clone(&greedy);
        tokio::spawn(async move { greedy.look_up("a.example", 0).await });
    }
    while greedy.lookups.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    let error = greedy.look_up("b.example", 0).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(other.lookups.available_permits(), LOOKUPS_OF_PROGRAM_MAX);
    let left = rules.budget.lookups.available_permits();
    assert_eq!(left, LOOKUPS_MAX - LOOKUPS_OF_PROGRAM_MAX);
}

/// A package runner fetches dozens of files at once, each with its own question.
#[tokio::test]
async fn more_look_ups_than_run_at_once_wait_for_their_turn() {
    let rules = NetworkRules::default().with_resolver(Arc::new(|_, port| {
        Box::pin(async move {
            tokio::task::yield_now().await;
            Ok(vec![SocketAddr::from(([192, 0, 2, 1], port))])
        })
    }));
    let execution_log = ExecutionLog::default();
    let passage = Arc::new(ProgramNetwork::new(list(&["*"]), rules, execution_log, "p".to_owned()));
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..LOOKUPS_MAX * 2 {
        let passage = Arc::clone(&passage);
        asking.spawn(async move { passage.look_up("a.example", 0).await });
    }
    while let Some(found) = asking.join_next().await {
        assert_eq!(found.unwrap().unwrap().len(), 1);
    }
}

#[test]
fn connections_leave_descriptors_to_the_gateway() {
    let budget = Budget::default();
    let open = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let open = usize::try_from(open.unwrap_or(u64::MAX)).unwrap();
    assert!(budget.connections_max <= CONNECTIONS_MAX);
    assert!(budget.connections_max <= (open / DESCRIPTORS_PART).max(PROGRAM_PART));
}
