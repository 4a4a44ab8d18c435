//! Converts the configuration into settings of the gateway: policy, bounds, retention, approvals, names.
//!
//! Doc: configuration.md

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use toolbooth_contracts::ToolPattern;
use toolbooth_contracts::agent_log::LogLevel;
use toolbooth_contracts::causes::with_causes;
use toolbooth_contracts::contract::{CLIENT_RUNTIMES, GATEWAY_RUNTIME};
use toolbooth_contracts::id::near_miss;
use toolbooth_contracts::trust::{TrustLevel, TrustLevels};
use toolbooth_import::HookClient;
use toolbooth_policy::{Authorizer, FeatureFlags, Grant, Whitelist};
use toolbooth_proxy::{Limits, PayloadRetention, READ_RESULT, Results};
use toolbooth_registry::WireNames;
use toolbooth_registry::lock::{Approvals, Lock, LockFile};
use toolbooth_registry::wire::{GivenNames, Naming, Prefix};

use crate::config::RuleMode;
use crate::config::lock::LockMode;
use crate::config::{Config, Loaded, LockUse};
use crate::failure::Failure;

/// The file that stores names on the wire.
pub(crate) const WIRE_NAMES: &str = "wire-names.json";

/// The file that stores the names of prompts on the wire.
pub(crate) const PROMPT_NAMES: &str = "prompt-names.json";

/// Rejects settings of discovered tools that a contract cannot have.
pub(crate) fn check_defaults(config: &Config) -> Result<(), Failure> {
    check_trust(config)?;
    let named = |kind: &str, name: &str| format!("{kind}.{name}");
    let reserved = [
        ("servers", config.servers.contains_key(GATEWAY_RUNTIME)),
        ("runtimes", config.runtimes.contains_key(GATEWAY_RUNTIME)),
    ];
    if let Some((kind, _)) = reserved.into_iter().find(|(_, there)| *there) {
        let message = format!("`{GATEWAY_RUNTIME}` is the gateway's own name");
        return Err(Failure::configuration(message)
            .at(named(kind, GATEWAY_RUNTIME))
            .hint("give it another name"));
    }
    if let Some(name) = config.runtimes.keys().find(|name| name.starts_with(CLIENT_RUNTIMES)) {
        let message = format!("names that begin with `{CLIENT_RUNTIMES}` belong to hooks");
        return Err(Failure::configuration(message)
            .at(named("runtimes", name))
            .hint("give it another name"));
    }
    for client in HookClient::ALL.into_iter().filter(|client| config.hooks.of(*client).is_some()) {
        let name = client.as_str();
        let taken = [
            ("servers", config.servers.contains_key(name)),
            ("commands", config.commands.contains_key(name)),
        ];
        if let Some((kind, _)) = taken.into_iter().find(|(_, there)| *there) {
            let message = format!("`{name}.…` are the tools of the client of `[hooks.{name}]`");
            return Err(Failure::configuration(message)
                .at(named(kind, name))
                .hint("give it another name"));
        }
    }
    let mut all = vec![("discovery.defaults".to_owned(), &config.discovery.defaults)];
    for (name, server) in &config.servers {
        all.push((format!("{}.defaults", named("servers", name)), &server.defaults));
        for (tool, own) in &server.overrides {
            all.push((format!("{}.overrides.{tool}", named("servers", name)), own));
        }
    }
    for (name, pair) in &config.commands {
        all.push((format!("{}.defaults", named("commands", name)), &pair.defaults));
        for (tool, own) in &pair.overrides {
            all.push((format!("{}.overrides.{tool}", named("commands", name)), own));
        }
    }
    for (section, defaults) in all {
        let wrong = |message: String| Err(Failure::configuration(message).at(section.clone()));
        if defaults.timeout_ms == Some(0) {
            return wrong("`timeout_ms` must be more than 0".to_owned());
        }
        if defaults.trust_level.as_deref().is_some_and(|level| level.trim().is_empty()) {
            return wrong("`trust_level` must not be blank".to_owned());
        }
        for permission in defaults.permissions.iter().flatten() {
            if Grant::parse(permission).is_err() || permission.contains('*') {
                return wrong(format!("`{permission}` is not a permission such as `read:files`"));
            }
        }
    }
    Ok(())
}

/// Returns the policy of the configuration, with its rules, which are not bound to tools yet.
pub(crate) fn authorizer(loaded: &Loaded) -> Result<Authorizer, Failure> {
    let (config, authorizer) = (&loaded.config, without_rules(loaded)?);
    let Some(rules) = crate::rules::read(loaded)? else {
        let useless = |setting: &str| {
            Err(Failure::configuration(format!("`{setting}` has no effect without rules"))
                .at(format!("policy.{setting}"))
                .hint(format!("write `rules = \"rules\"`, or take `{setting}` out")))
        };
        return match config.policy.mode {
            _ if !config.policy.history.is_empty() => useless("history"),
            RuleMode::Enforce => Ok(authorizer),
            RuleMode::Shadow => useless("mode"),
        };
    };
    let authorizer = authorizer.with_engine(Arc::new(rules));
    Ok(match config.policy.mode {
        RuleMode::Enforce => authorizer,
        RuleMode::Shadow => authorizer.with_rules_in_shadow(),
    })
}

/// Checks the words of trust: with a misspelt one, calls would need no approval.
fn check_trust(config: &Config) -> Result<(), Failure> {
    let trust = &config.trust;
    let levels =
        [TrustLevel::Builtin, TrustLevel::Trusted, TrustLevel::Sandbox, TrustLevel::Untrusted]
            .map(TrustLevel::as_str);
    let own = |word: &str| TrustLevel::parse(word);
    if let Some((word, _)) =
        trust.levels.iter().find(|(word, level)| own(word).is_some_and(|own| own != **level))
    {
        let message = format!("`{word}` is a level itself, and its meaning cannot be changed");
        return Err(Failure::configuration(message)
            .at(format!("trust.levels.{word}"))
            .hint("map a word of your own"));
    }
    let is_known = |word: &str| own(word).is_some() || trust.levels.contains_key(word);
    for word in trust.approval.iter().filter(|word| !is_known(word)) {
        if let Some(level) = levels.into_iter().find(|level| near_miss(word, level)) {
            let message = format!("`{}` is not a trust level", word.escape_debug());
            return Err(Failure::configuration(message)
                .at("trust.approval")
                .hint(format!("did you mean `{level}`?")));
        }
    }
    Ok(())
}

/// Returns the policy of the configuration without its rules.
pub(crate) fn without_rules(loaded: &Loaded) -> Result<Authorizer, Failure> {
    let config = &loaded.config;
    let variable = |name: &str| std::env::var(name).ok();
    let flags =
        FeatureFlags { mcp_tools: config.flags.mcp_tools, tools_policy: config.flags.tools_policy }
            .overridden(variable)
            .map_err(|error| Failure::configuration(with_causes(&error)))?;
    let whitelist = match variable("TOOL_WHITELIST").filter(|list| !list.is_empty()) {
        Some(list) => Whitelist::parse(&list)
            .map_err(|error| Failure::configuration(with_causes(&error)))
            .map_err(|failure| failure.at("the variable TOOL_WHITELIST"))?,
        None => config.policy.whitelist.clone().map_or_else(Whitelist::all, Whitelist::only),
    };
    Ok(Authorizer::new(flags)
        .with_whitelist(whitelist)
        .with_callers(crate::caller_sets::rights(config)?)
        .with_budget(crate::caller_sets::budget(&config.budgets, "budgets")?)
        .with_approval_by_trust(
            config.trust.approval.clone(),
            TrustLevels::with(config.trust.levels.clone()),
        ))
}

/// Returns the limits of the call path.
///
/// # Errors
/// [`Failure`], if a call would wait longer for its approval than a request can be decided.
pub(crate) fn limits(config: &Config) -> Result<Limits, Failure> {
    let standard = Limits::default();
    let (proxy, approvals) = (&config.proxy, &config.approvals);
    let approval_expiry =
        approvals.expiry_ms.map_or(standard.approval_expiry, |ms| Duration::from_millis(ms.get()));
    let approval_wait = Duration::from_millis(approvals.wait_ms.unwrap_or_default());
    if approval_wait >= approval_expiry {
        let message = "a call must not wait longer than its approval can be decided";
        let failure = Failure::configuration(message).at("approvals.wait_ms");
        return Err(failure.hint("give less than `expiry_ms`"));
    }
    if proxy.in_flight_max == Some(0) {
        let failure = Failure::configuration("no call could run").at("proxy.in_flight_max");
        return Err(failure.hint("give at least 1, or `toolbooth pause` the calls"));
    }
    Ok(Limits {
        in_flight_max: proxy.in_flight_max.unwrap_or(standard.in_flight_max),
        argument_bytes_max: proxy.argument_bytes_max.unwrap_or(standard.argument_bytes_max),
        result_bytes_max: proxy.result_bytes_max.unwrap_or(standard.result_bytes_max),
        output: proxy.output,
        input_patience: proxy
            .input_patience_ms
            .map_or(standard.input_patience, Duration::from_millis),
        progress_cap: proxy.progress_cap_ms.map(Duration::from_millis),
        approval_expiry,
        approval_wait,
        queued_max: proxy.queued_max.unwrap_or(standard.queued_max),
        ..standard
    })
}

/// Returns the retention of payloads.
pub(crate) fn retention(config: &Config) -> PayloadRetention {
    let logs = config.audit.tools.iter().map(|(tool, level)| (tool.clone(), *level));
    let receipts = &config.receipts;
    let kept = receipts.tools.iter().map(|(tool, own)| (tool.clone(), *own));
    // The result of a read is already in the receipt that it reads.
    let read = ToolPattern::try_from(READ_RESULT.to_owned()).ok();
    let logs = logs.chain(read.clone().map(|read| (read, LogLevel::Digest)));
    let kept = kept.chain(read.map(|read| (read, Results::Digest)));
    let shown = config.results.tools.iter().map(|(tool, bytes)| (tool.clone(), *bytes));
    let inline_bytes = config.results.inline_bytes();
    let proxy = &config.proxy;
    let intents = proxy.intents.iter().map(|(tool, own)| (tool.clone(), *own));
    PayloadRetention::default()
        .with_log(config.audit.log, logs.collect())
        .with_results(receipts.results, kept.collect())
        .with_inline_bytes(inline_bytes, shown.collect())
        .with_intent(proxy.intent, intents.collect())
}

/// Returns the permissions with an unmet requirement.
pub(crate) fn unmet(config: &Config) -> BTreeMap<String, String> {
    let there = |requirement: &str| match requirement.split_once('.') {
        Some(("servers", name)) => {
            config.servers.get(name).is_some_and(|server| server.enabled != Some(false))
        }
        Some(("runtimes", name)) => config.runtimes.contains_key(name),
        Some(("commands", name)) => {
            config.commands.get(name).is_some_and(|pair| pair.enabled != Some(false))
        }
        Some(("endpoints", name)) => config.endpoints.contains_key(name),
        _ => requirement == "builtin.web_search" && config.builtin.web_search.endpoint.is_some(),
    };
    config
        .permissions
        .iter()
        .filter(|(_, permission)| !there(&permission.requires))
        .map(|(name, permission)| (name.clone(), permission.requires.clone()))
        .collect()
}

/// Returns the rules for discovered tools: the lock, and two settings.
pub(crate) fn approvals(loaded: &Loaded) -> Result<Approvals, Failure> {
    let discovery = &loaded.config.discovery;
    Ok(Approvals {
        lock: read_lock(loaded)?,
        new_tools: discovery.new_tools,
        suspicious: discovery.suspicious,
    })
}

/// Reads the lock file or the pins, depending on the mode. An unreadable file approves nothing and stops the
/// start.
pub(crate) fn read_lock(loaded: &Loaded) -> Result<Lock, Failure> {
    match loaded.lock_mode() {
        LockMode::Off => Ok(Lock::Off),
        LockMode::File => match read_lock_file(loaded)? {
            Some(lock) => Ok(Lock::File(lock)),
            None if loaded.requires_lock() && loaded.lock_use != LockUse::Write => {
                Err(Failure::configuration("the lock file is not there")
                    .at(loaded.lock().display().to_string())
                    .hint("`toolbooth lock` writes it"))
            }
            None => Ok(Lock::Missing),
        },
        LockMode::FirstUse => {
            if loaded.lock_use != LockUse::Write {
                check_replicas(loaded)?;
            }
            Ok(Lock::FirstUse(loaded.pins().read()?.unwrap_or_else(LockFile::empty)))
        }
    }
}

/// Rejects first-use pins for a store that replicas share, because each replica would pin its own first
/// listing.
pub(crate) fn check_replicas(loaded: &Loaded) -> Result<(), Failure> {
    if loaded.config.store.url.is_none() {
        return Ok(());
    }
    let written = if loaded.config.lock.mode().is_some() { "" } else { ", the default," };
    Err(Failure::configuration(format!(
        "`[lock] mode = \"first-use\"`{written} does not work with `[store] url`: each replica \
         would pin its own first listing"
    ))
    .at("lock.mode")
    .hint(
        "write `[lock]` with `mode = \"file\"`, and give every replica the file that `toolbooth \
         lock` writes; or write `mode = \"off\"` to accept tools as their sources describe them",
    ))
}

/// Reads the lock file; `None` if it does not exist.
pub(crate) fn read_lock_file(loaded: &Loaded) -> Result<Option<LockFile>, Failure> {
    let path = loaded.lock();
    let shown = path.display().to_string();
    match crate::files::read(&path) {
        Ok(text) => LockFile::parse(&text).map(Some).map_err(|error| {
            let location = error
                .location
                .map_or(shown.clone(), |(line, column)| format!("{shown}:{line}:{column}"));
            Failure::new(crate::failure::USAGE, "invalid-lock", error.message).at(location).hint(
                "get the file back from version control, or remove it and run `toolbooth lock`",
            )
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::configuration(format!("the lock file cannot be read: {error}"))
            .at(shown)
            .hint("`toolbooth lock` writes it")),
    }
}

/// Returns the names on the wire that were assigned so far, and the rule for further ones.
pub(crate) fn wire_names(loaded: &Loaded) -> Result<WireNames, Failure> {
    kept_names(loaded, WIRE_NAMES)
}

/// Returns the names that a file stores, and the rule for further ones.
pub(crate) fn kept_names(loaded: &Loaded, file: &str) -> Result<WireNames, Failure> {
    let config = &loaded.config;
    let (naming, prefix) = (config.mcp.names, config.mcp.prefix);
    if naming == Naming::Native && prefix != Prefix::Always {
        return Err(Failure::configuration("`prefix` is about short names; ids stay as they are")
            .at("mcp.prefix")
            .hint("take `prefix` or `names = \"native\"` out"));
    }
    Ok(WireNames::new(naming, prefix, remembered_names(loaded, file)))
}

pub(crate) fn remembered_names(loaded: &Loaded, file: &str) -> GivenNames {
    let path = loaded.data.join(file);
    // At the first start the file does not exist.
    let Ok(text) = crate::files::read(&path) else { return GivenNames::default() };
    GivenNames::read(&text).unwrap_or_else(|| {
        tracing::warn!("the wire names are assigned again, because their file cannot be read");
        GivenNames::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_words_of_trust_are_refused() {
        let checked = |text: &str| {
            let text = format!("[trust]\n{text}\n");
            check_trust(&crate::config::parse(&text, "toolbooth.toml", Vec::new()).unwrap())
        };
        for fine in [
            "approval = [\"untrusted\", \"vendor\"]",
            "approval = [\"untrustd\"]\nlevels = { untrustd = \"sandbox\" }",
            "levels = { trusted = \"trusted\", vendor = \"sandbox\" }",
        ] {
            assert!(checked(fine).is_ok(), "{fine}");
        }
        let refused = checked("approval = [\"untrustd\"]").unwrap_err();
        assert_eq!(refused.hint.as_deref(), Some("did you mean `untrusted`?"));
        let refused = checked("levels = { trusted = \"untrusted\" }").unwrap_err();
        assert_eq!(refused.path.as_deref(), Some("trust.levels.trusted"));
    }
}
