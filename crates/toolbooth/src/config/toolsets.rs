//! Checks and converts tool sets and the server with bare URIs; references to unknown servers are errors.
//!
//! Doc: configuration.md#toolsets

use std::collections::{BTreeMap, BTreeSet};

use toolbooth_contracts::ToolPattern;
use toolbooth_contracts::id::nearest;
use toolbooth_policy::ToolSet;
use toolbooth_registry::discovered::tool_id;
use toolbooth_registry::uris::ResourceUris;

use super::document::Config;
use crate::failure::Failure;

/// The maximum length of a tool set's name, which is part of a path.
const NAME_MAX: usize = 64;

/// Rejects servers with ambiguous ids. An item's id is its server's id, a dot and its key.
pub(crate) fn check_servers(config: &Config) -> Result<(), Failure> {
    let mut ids: BTreeMap<String, &str> = BTreeMap::new();
    for name in config.servers.keys() {
        let id = tool_id(name);
        let why = format!("both have the id `{id}`");
        if let Some(other) = ids.insert(id, name) {
            return Err(ambiguous(name, other, &why));
        }
    }
    for (id, name) in &ids {
        let mut heads = id.match_indices('.').filter_map(|(at, _)| id.get(..at));
        if let Some(other) = heads.find_map(|head| ids.get(head)) {
            let why = format!("`{id}.x` may be an id of either");
            return Err(ambiguous(name, other, &why));
        }
    }
    Ok(())
}

fn ambiguous(name: &str, other: &str, why: &str) -> Failure {
    let message = format!(
        "the servers `{}` and `{}` cannot be told apart: {why}",
        name.escape_debug(),
        other.escape_debug()
    );
    Failure::configuration(message).at(format!("servers.{name}")).hint("rename one of them")
}

/// Checks and converts the tool sets.
pub(crate) fn toolsets(config: &Config) -> Result<BTreeMap<String, ToolSet>, Failure> {
    let servers: BTreeSet<String> = config.servers.keys().map(|name| tool_id(name)).collect();
    let mut out = BTreeMap::new();
    for (name, set) in &config.toolsets {
        let setting = format!("toolsets.{name}");
        let fits = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
        if name.is_empty() || name.len() > NAME_MAX || !fits {
            let message =
                format!("a tool set's name has 1 to {NAME_MAX} of the characters A-Z a-z 0-9 _ -");
            return Err(Failure::configuration(message).at(setting));
        }
        for (member, patterns) in [("prompts", &set.prompts), ("resources", &set.resources)] {
            for pattern in patterns.iter().flatten() {
                check_server(pattern, &servers, &format!("{setting}.{member}"))?;
            }
        }
        let set = ToolSet {
            tools: set.tools.clone(),
            prompts: set.prompts.clone(),
            resources: set.resources.clone(),
        };
        out.insert(name.clone(), set);
    }
    Ok(out)
}

/// Rejects a pattern of prompts or resources that does not begin with the id of a known server.
fn check_server(
    pattern: &ToolPattern,
    servers: &BTreeSet<String>,
    setting: &str,
) -> Result<(), Failure> {
    let text = pattern.as_str();
    let known = |server: &String| {
        text.strip_prefix(server.as_str()).is_some_and(|rest| rest.starts_with('.'))
    };
    if text == "*" || servers.iter().any(known) {
        return Ok(());
    }
    let server = text.split('.').next().unwrap_or_default();
    let message = format!("`{}` names no server of `[servers]`", text.escape_debug());
    let failure = Failure::configuration(message).at(setting);
    Err(match nearest(server, servers.iter().map(String::as_str)) {
        Some(near) => failure.hint(format!("did you mean `{near}.*`?")),
        None => failure.hint("write `SERVER.NAME`, `SERVER.URI`, or `SERVER.*`"),
    })
}

/// Rejects tools of sets that cannot exist: not built in, not in the registry file and not of a server. If a
/// command is configured, it could list any tool, so nothing is rejected.
pub(crate) fn check_tools(config: &Config, known: &[&str]) -> Result<(), Failure> {
    if !config.commands.is_empty() {
        return Ok(());
    }
    let servers: Vec<String> =
        config.servers.keys().map(|name| format!("{}.", tool_id(name))).collect();
    let renamed = config.servers.values().flat_map(|server| server.rename.values());
    let ids: Vec<&str> = known.iter().copied().chain(renamed.map(String::as_str)).collect();
    for (name, set) in &config.toolsets {
        for pattern in &set.tools {
            let text = pattern.as_str();
            let of_server = servers.iter().any(|server| text.starts_with(server.as_str()));
            if text == "*" || of_server || ids.iter().any(|id| pattern.selects(id)) {
                continue;
            }
            let message = format!("there is no tool `{}`", text.escape_debug());
            let failure = Failure::configuration(message).at(format!("toolsets.{name}.tools"));
            let domains = ids.iter().filter_map(|id| id.split_once('.')).map(|(domain, _)| domain);
            let wholes: Vec<String> = domains
                .map(|domain| format!("{domain}.*"))
                .chain(servers.iter().map(|server| format!("{server}*")))
                .collect();
            let candidates = ids.iter().copied().chain(wholes.iter().map(String::as_str));
            return Err(match nearest(text, candidates) {
                Some(near) => failure.hint(format!("did you mean `{near}`?")),
                None => failure.hint("`toolbooth list` shows the tools that there are"),
            });
        }
    }
    Ok(())
}

/// Returns the form of resource URIs.
pub(crate) fn uris(config: &Config) -> Result<ResourceUris, Failure> {
    let Some(server) = &config.mcp.bare_uris else { return Ok(ResourceUris::default()) };
    if config.servers.contains_key(server) {
        return Ok(ResourceUris::new(Some(server.clone())));
    }
    let message = format!("there is no server `{}`", server.escape_debug());
    let failure = Failure::configuration(message).at("mcp.bare_uris");
    Err(match nearest(server, config.servers.keys().map(String::as_str)) {
        Some(near) => failure.hint(format!("did you mean `{near}`?")),
        None => failure.hint("name a server of `[servers]`"),
    })
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    fn config(text: &str) -> Result<Config, Failure> {
        let servers = "[servers.files]\ncommand = \"x\"\n[servers.\"my mail\"]\ncommand = \"x\"\n";
        parse(&format!("{servers}{text}"), "t.toml", Vec::new())
    }

    #[test]
    fn sets_name_tools_and_what_servers_have() {
        let config = config(
            "[toolsets.desk]\ntools = [\"files.*\", \"calculator\"]\n\
             prompts = [\"my_mail.greet\"]\nresources = [\"files.file:///a/*\", \"*\"]\n",
        );
        let sets = toolsets(&config.unwrap()).unwrap();
        let desk = sets.get("desk").unwrap();
        assert!(desk.has_tool("files.read") && !desk.has_tool("mail.send"));
        assert_eq!(desk.prompts.as_ref().unwrap().len(), 1);
    }

    #[test]
    fn wrong_names_and_patterns_say_what_is_meant() {
        let told = |text: &str| {
            let failure = config(text).and_then(|config| toolsets(&config).map(drop)).unwrap_err();
            format!("{} {}", failure.path.unwrap_or_default(), failure.hint.unwrap_or_default())
        };
        let near = told("[toolsets.desk]\ntools = []\nprompts = [\"file.*\"]\n");
        assert!(near.contains("toolsets.desk.prompts") && near.contains("`files.*`"), "{near}");
        assert!(told("[toolsets.desk]\ntools = [\"a b\"]\n").contains("t.toml:6"));
        assert!(told("[toolsets.desk]\ntool = []\n").contains("`tools`"));
        assert!(told("[toolsets.\"a/b\"]\ntools = []\n").contains("toolsets.a/b"));
        assert!(told("[toolsets.desk]\nprompts = []\n").contains("t.toml"), "tools are wanted");
    }

    #[test]
    fn tools_that_nothing_can_have_are_told() {
        let told = |tools: &str, more: &str| {
            let config = config(&format!("[toolsets.desk]\ntools = [{tools}]\n{more}")).unwrap();
            check_tools(&config, &["calculator", "os.create_task"])
                .map_err(|failure| failure.hint.unwrap_or_default())
        };
        let fine = "\"calculator\", \"os.*\", \"files.anything\", \"my_mail.*\", \"*\"";
        assert_eq!(told(fine, ""), Ok(()));
        assert_eq!(told("\"calculater\"", ""), Err("did you mean `calculator`?".to_owned()));
        assert_eq!(told("\"file.*\"", ""), Err("did you mean `files.*`?".to_owned()));
        let command = "[commands.c]\ndiscover_command = \"x\"\ncall_command = \"y\"\n";
        assert_eq!(told("\"anything\"", command), Ok(()), "a command may list it");
    }

    #[test]
    fn servers_with_ambiguous_ids_are_refused() {
        let told = |names: &[&str]| {
            let mut servers = String::new();
            for name in names {
                servers.push_str(&format!("[servers.\"{name}\"]\ncommand = \"x\"\n"));
            }
            let config = parse(&servers, "t.toml", Vec::new()).unwrap();
            check_servers(&config).map_err(|failure| failure.message)
        };
        assert_eq!(told(&["s", "st", "s-t", "s_t", "t.s.u", "t.sv"]), Ok(()));
        for (one, two) in [("a b", "a_b"), ("s", "s.t"), ("s.t", "s.t.u.v"), ("a b", "a_b.c")] {
            let why = told(&[one, two, "other"]).unwrap_err();
            assert!(
                why.contains(&format!("`{one}`")) && why.contains(&format!("`{two}`")),
                "{why}"
            );
        }
    }

    #[test]
    fn bare_uris_are_those_of_a_known_server() {
        let of = |text: &str| config(text).and_then(|config| uris(&config));
        assert_eq!(of("").unwrap().to_wire("files", "a:b"), "toolbooth+files:a:b");
        let bare = of("[mcp]\nbare_uris = \"files\"\n").unwrap();
        assert_eq!(bare.to_wire("files", "a:b"), "a:b");
        let wrong = of("[mcp]\nbare_uris = \"filse\"\n").unwrap_err();
        assert_eq!(wrong.hint.as_deref(), Some("did you mean `files`?"));
    }
}
