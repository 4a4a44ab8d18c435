//! Converts `[http]` into the limits and the names of the HTTP door.
//!
//! Doc: configuration.md#http, front-doors.md#limits, front-doors.md#behind-a-proxy

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use toolbooth_server::auth::Loopback;
use toolbooth_server::http::{
    BODY_BYTES_MAX, DESCRIPTORS_RESERVED, DoorNames, Limits, connections_fitting,
};
use toolbooth_server::mcp::SessionLimits;

use crate::config::{Config, Http};
use crate::failure::Failure;

/// The largest setting of sessions; each uses about a kilobyte.
const SESSIONS_MAX: usize = 1_000_000;

/// Bytes of a message around the arguments of its call.
const ENVELOPE_BYTES: usize = 256 << 10;

/// The operator warning about `loopback = "any"`.
pub(crate) const ANY_USER: &str =
    "`[http] loopback = \"any\"`: every user of this machine may call as the local user";

/// Returns the configured limits, with defaults for the others.
///
/// # Errors
/// [`Failure`], if a limit is out of its range or does not fit this process.
pub(crate) fn limits(config: &Config) -> Result<Limits, Failure> {
    let (http, standard) = (&config.http, Limits::default());
    let body_bytes_max = message_bytes_max(config);
    let fitting = connections_fitting();
    let connections_max = http.connections_max.unwrap_or(standard.connections_max);
    if !(1..=fitting).contains(&connections_max) {
        return Err(Failure::configuration(format!(
            "`http.connections_max` is {connections_max}, and this process may have 1 to {fitting}"
        ))
        .hint(format!(
            "raise the limit of open files (`ulimit -n`, `LimitNOFILE=`): a connection takes one \
             descriptor, and {DESCRIPTORS_RESERVED} are left for everything else"
        )));
    }
    let least = standard.body_bytes_budget.max(body_bytes_max);
    let body_bytes_budget = http.body_bytes_budget.unwrap_or(least);
    if body_bytes_budget < body_bytes_max {
        return Err(Failure::configuration(format!(
            "`http.body_bytes_budget` is {body_bytes_budget}, less than one request may have"
        ))
        .hint(format!("give at least {body_bytes_max}")));
    }
    let sessions_max = http.sessions_max.unwrap_or(standard.sessions.all_max);
    let per_caller = standard.sessions.per_caller_max.min(sessions_max);
    let sessions_per_caller_max = http.sessions_per_caller_max.unwrap_or(per_caller);
    for (name, number) in
        [("sessions_max", sessions_max), ("sessions_per_caller_max", sessions_per_caller_max)]
    {
        if !(1..=SESSIONS_MAX).contains(&number) {
            return Err(Failure::configuration(format!(
                "`http.{name}` is {number}, and there may be 1 to {SESSIONS_MAX}"
            )));
        }
    }
    let time = |given: Option<u64>, name: &str, standard: Duration| match given {
        Some(0) => Err(Failure::configuration(format!("`http.{name}` must be more than 0"))),
        given => Ok(given.map_or(standard, Duration::from_millis)),
    };
    Ok(Limits {
        connections_max,
        header_timeout: time(http.header_timeout_ms, "header_timeout_ms", standard.header_timeout)?,
        body_timeout: time(http.body_timeout_ms, "body_timeout_ms", standard.body_timeout)?,
        write_timeout: time(http.write_timeout_ms, "write_timeout_ms", standard.write_timeout)?,
        body_bytes_budget,
        body_bytes_max,
        sessions: SessionLimits {
            per_caller_max: sessions_per_caller_max,
            all_max: sessions_max,
            idle: time(http.session_idle_ms, "session_idle_ms", standard.sessions.idle)?,
        },
    })
}

/// Returns the bytes of one message: enough for the arguments that a call can have.
pub(crate) fn message_bytes_max(config: &Config) -> usize {
    let arguments = config.proxy.argument_bytes_max.unwrap_or_default();
    BODY_BYTES_MAX.max(arguments.saturating_add(ENVELOPE_BYTES))
}

/// Returns the names of the door that listens at `address`.
///
/// # Errors
/// [`Failure`], if the door would be open beyond this machine without protection, or a setting has no
/// effect.
pub(crate) fn names(http: &Http, address: SocketAddr) -> Result<DoorNames, Failure> {
    let wrong =
        |message: String, at: &str| Failure::configuration(message).at(format!("http.{at}"));
    if !address.ip().is_loopback() && !http.behind_proxy && http.tls.is_none() {
        return Err(wrong(
            format!("`{address}` is not a loopback address, and keys would be sent without TLS"),
            "listen",
        )
        .hint(
            "listen on 127.0.0.1 or [::1]; or write `tls = { cert = \"FILE\", key = \"FILE\" }`; or put \
             a proxy with TLS in front, with `behind_proxy = true`, `trusted_proxies` and `hosts`",
        ));
    }
    if let Some(host) = http.hosts.iter().find(|host| !is_host(host)) {
        return Err(wrong(format!("`{}` is no host name", host.escape_debug()), "hosts")
            .hint("give names without scheme and port, such as gateway.example"));
    }
    let is_origin = |text: &&String| {
        url::Url::parse(text).is_ok_and(|url| url.origin().ascii_serialization() == **text)
    };
    if let Some(origin) = http.origins.iter().find(|origin| !is_origin(origin)) {
        return Err(wrong(format!("`{}` is not an origin", origin.escape_debug()), "origins")
            .hint("give scheme, host and port as browsers do, such as https://gateway.example"));
    }
    let mut names = DoorNames::new(&http.hosts, &http.origins);
    if http.tls.is_some() {
        names = names.secure();
    }
    if !http.behind_proxy {
        return match http.trusted_proxies.is_empty() {
            true => Ok(names),
            false => Err(wrong(
                "`trusted_proxies` needs `behind_proxy = true`".to_owned(),
                "trusted_proxies",
            )),
        };
    }
    if http.loopback == Loopback::Any {
        let message = "behind a proxy no connection is `local`: every client would be";
        return Err(wrong(message.to_owned(), "loopback").hint("take `loopback` out"));
    }
    for (list, name) in [(&http.trusted_proxies, "trusted_proxies"), (&http.hosts, "hosts")] {
        if list.is_empty() {
            let example = match name {
                "hosts" => "hosts = [\"gateway.example\"]",
                _ => "trusted_proxies = [\"10.0.0.0/8\"]",
            };
            return Err(wrong(format!("`behind_proxy` needs `{name}`"), name)
                .hint(format!("write it such as `{example}`")));
        }
    }
    let network = |text: &String| {
        let one = text.parse::<IpAddr>().map(IpNet::from);
        text.parse::<IpNet>().or(one).map_err(|_| {
            wrong(format!("`{}` is not an address", text.escape_debug()), "trusted_proxies")
                .hint("give an address or a range, such as 127.0.0.1 or 10.0.0.0/8")
        })
    };
    let proxies = http.trusted_proxies.iter().map(network).collect::<Result<Vec<_>, _>>()?;
    Ok(names.behind(proxies))
}

/// Whether a text is a host name, or an address, without a port.
fn is_host(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    (!text.is_empty() && text.len() <= 253 && text.chars().all(plain))
        || text
            .strip_prefix('[')
            .and_then(|text| text.strip_suffix(']'))
            .is_some_and(|address| address.parse::<std::net::Ipv6Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_door_is_open_beyond_this_machine_only_behind_a_proxy() {
        let (here, beyond) = (([127, 0, 0, 1], 1).into(), ([0, 0, 0, 0], 1).into());
        let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let proxied = || Http {
            behind_proxy: true,
            trusted_proxies: list(&["10.0.0.0/8", "127.0.0.1"]),
            hosts: list(&["gateway.example"]),
            ..Http::default()
        };
        assert!(names(&Http::default(), here).is_ok() && names(&Http::default(), beyond).is_err());
        assert!(names(&proxied(), beyond).unwrap().is_behind_proxy());
        let tls = Some(crate::config::HttpTls::default());
        assert!(names(&Http { tls, ..Http::default() }, beyond).is_ok());
        for wrong in [
            Http { behind_proxy: false, ..proxied() },
            Http { trusted_proxies: Vec::new(), ..proxied() },
            Http { trusted_proxies: list(&["everybody"]), ..proxied() },
            Http { hosts: Vec::new(), ..proxied() },
            Http { hosts: list(&["gateway.example:443"]), ..proxied() },
            Http { hosts: list(&["https://gateway.example"]), ..proxied() },
            Http { origins: list(&["gateway.example"]), ..proxied() },
            Http { origins: list(&["https://gateway.example/"]), ..proxied() },
            Http { loopback: Loopback::Any, ..proxied() },
        ] {
            assert!(names(&wrong, here).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn limits_that_do_not_fit_are_refused() {
        let of = |http| limits(&Config { http, ..Config::default() });
        assert_eq!(of(Http::default()).unwrap(), Limits::default());
        let connections = |max| Http { connections_max: Some(max), ..Http::default() };
        assert_eq!(of(connections(1)).unwrap().connections_max, 1);
        assert!(of(connections(0)).is_err() && of(connections(usize::MAX)).is_err());
        let budget = Http { body_bytes_budget: Some(BODY_BYTES_MAX - 1), ..Http::default() };
        assert!(of(budget).is_err());
        let sessions = Http { sessions_max: Some(7), ..Http::default() };
        assert_eq!(of(sessions).unwrap().sessions.per_caller_max, 7);
        assert!(of(Http { sessions_max: Some(0), ..Http::default() }).is_err());
        assert!(of(Http { session_idle_ms: Some(0), ..Http::default() }).is_err());
        assert!(of(Http { body_timeout_ms: Some(0), ..Http::default() }).is_err());
    }

    #[test]
    fn a_message_can_hold_the_arguments_that_a_call_may_have() {
        let of = |argument_bytes_max| {
            let mut config = Config::default();
            config.proxy.argument_bytes_max = argument_bytes_max;
            limits(&config).unwrap()
        };
        assert_eq!(of(None).body_bytes_max, BODY_BYTES_MAX);
        assert_eq!(of(Some(10)).body_bytes_max, BODY_BYTES_MAX);
        let large = of(Some(100 << 20));
        assert!(large.body_bytes_max > 100 << 20);
        assert!(large.body_bytes_budget >= large.body_bytes_max);
    }
}
