//! Tests sandboxed MCP servers in the default profile.
//!
//! Real servers start with their package runners. A server that probes its sandbox reaches neither
//! the gateway, nor credentials, nor the machine.
//!
//! Path: 7. Doc: execution.md#the-network-of-a-contained-program, execution.md#what-a-program-sees,
//! execution.md#what-a-server-sees-of-a-project, execution.md#homes-and-caches,
//! execution.md#what-the-sandbox-stopped

use std::net::{IpAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use toolbooth_tests::{Place, RunningGateway, is_root, repository, set_up, skip};

use crate::operator_socket;

/// The id of a user without privileges.
const ORDINARY: u32 = 65_534;

/// Returns a place with a server that probes its sandbox. The user's home is `home`, or a folder of the
/// place.
fn curious(settings: &str, home: Option<&Path>) -> Place {
    let place = Place::new();
    let server = repository().join("tests/clients/curious_server.py");
    // A server can read its working folder, but not the folder of the tests.
    let text = std::fs::read_to_string(server).unwrap();
    place.write("server.py", &text);
    place.write(
        "toolbooth.toml",
        &format!(
            "[servers.curious]\ncommand = \"/usr/bin/python3\"\nargs = [\"server.py\"]\n{settings}"
        ),
    );
    let home = home.map_or_else(|| place.path().join("home"), Path::to_owned);
    std::fs::create_dir_all(&home).unwrap();
    let home = home.display().to_string();
    place.env("HOME", &home)
}

fn call(gateway: &RunningGateway, tool: &str, arguments: &Value) -> (u16, String) {
    let body = json!({ "toolId": format!("curious.{tool}"), "args": arguments });
    let (status, answer) = gateway.post("/v1/calls", &body.to_string());
    let content = answer.get("content").or(answer["details"].get("content"));
    let text = content.and_then(|content| content[0]["text"].as_str());
    (status, text.unwrap_or_default().to_owned())
}

/// Compares a running server in the default profile with the same server without a sandbox.
#[test]
fn a_contained_server_reaches_no_door_and_no_credentials() {
    for contained in [true, false] {
        let settings = if contained { "" } else { "sandbox = \"none\"\n" };
        let place = curious(settings, None);
        let service = TcpListener::bind("127.0.0.1:0").unwrap();
        std::thread::spawn(move || {
            for stream in service.incoming() {
                let _ = std::io::Write::write_all(&mut stream.unwrap(), b"x");
            }
        });
        for (path, text) in [
            ("home/.npmrc", "//r.example/:_authToken=hunter2"),
            ("home/.config/pip/pip.conf", "hunter2"),
            ("home/.config/uv/uv.toml", "hunter2"),
            ("home/.cache/huggingface/token", "hunter2"),
            ("home/.local/share/uv/credentials/x", "hunter2"),
            ("home/.npm/_npx/x", "hunter2"),
            (".env", "KEY=hunter2"),
        ] {
            place.write(path, text);
        }
        let gateway = place.serve();
        let calculator = json!({ "toolId": "calculator", "args": { "expression": "6*7" } });
        let door = json!({
            "url": format!("http://{}/v1/calls", gateway.address), "body": calculator.to_string(),
        });
        let (_, got) = call(&gateway, "post", &door);
        assert_eq!(got.contains("\"42\""), !contained, "the door: {got}");
        let (host, port) = gateway.address.split_once(':').unwrap();
        let port: u16 = port.parse().unwrap();
        let (status, got) = call(&gateway, "connect", &json!({ "host": host, "port": port }));
        assert_eq!(status == 200, !contained, "the door's port: {got}");
        let socket = operator_socket::socket(&place);
        let (_, got) = call(&gateway, "decide", &json!({ "path": socket, "id": "1" }));
        assert_eq!(got.contains("404"), !contained, "the operator's socket: {got}");
        for file in [
            "home/.npmrc",
            "home/.config/pip/pip.conf",
            "home/.config/uv/uv.toml",
            "home/.cache/huggingface/token",
            "home/.local/share/uv/credentials/x",
            "home/.npm/_npx/x",
            ".env",
            "toolbooth.toml",
            ".toolbooth/operator.key",
            ".toolbooth/toolbooth.db",
        ] {
            let path = place.path().join(file);
            if !path.exists() {
                continue;
            }
            let (status, got) = call(&gateway, "read", &json!({ "path": path }));
            let read = status == 200 && !got.is_empty();
            assert!(!(read && contained), "{file}: {got}");
            assert!(contained || read || file.ends_with(".db"), "{file}: {got}");
        }
        for file in ["home/.npm/_npx/new", "home/.cache/new", "new"] {
            let path = place.path().join(file);
            let (status, got) = call(&gateway, "write", &json!({ "path": path }));
            assert_eq!(status == 200, !contained, "{file}: {got}");
            assert_eq!(path.exists(), !contained, "{file}");
        }
        let (_, variables) = call(&gateway, "variables", &json!({}));
        let home = serde_json::from_str::<Value>(&variables).unwrap()["HOME"].clone();
        let own = place.path().canonicalize().unwrap().join(".toolbooth/servers/curious");
        assert_eq!(home == json!(own), contained, "{home}");
        if contained {
            let path = own.join("kept");
            let (status, got) = call(&gateway, "write", &json!({ "path": path }));
            assert_eq!((status, got.as_str()), (200, "written"), "a home of its own");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "written");
            let (_, got) =
                call(&gateway, "read", &json!({ "path": place.path().join("server.py") }));
            assert!(got.contains("curious"), "where it runs it may read");
        }
        let (status, _, words) = gateway.stop();
        assert_eq!(status, Some(0), "{words}");
        place.assert_sound();
    }
}

/// A server runs for a long time, while files with secrets are replaced and created.
#[test]
fn secrets_of_a_project_that_come_while_a_server_runs_are_not_seen() {
    for contained in [true, false] {
        let home = tempfile::tempdir().unwrap();
        let settings = if contained { "" } else { "sandbox = \"none\"\n" };
        let place = curious(settings, Some(home.path()));
        for (name, text) in [
            ("package.json", "{}"),
            (".env", "KEY=hunter2"),
            ("README.md", "words"),
            ("src/a.txt", "one"),
            ("apps/a/.env.local", "KEY=hunter2"),
            ("apps/a/index.js", "words"),
            ("apps/a/b/c/d/e/.envrc", "KEY=hunter2"),
            ("apps/a/b/c/d/e/lib/x.txt", "words"),
        ] {
            place.write(name, text);
        }
        std::fs::hard_link(place.path().join(".env"), place.path().join("settings.txt")).unwrap();
        place.write(".git/config", "[remote]\nurl = https://me:hunter2@h/x.git\n");
        place.write("config/dev.txt", "KEY=hunter2").write("target/.env", "KEY=hunter2");
        std::os::unix::fs::symlink("config/dev.txt", place.path().join(".env.dev")).unwrap();
        // The launcher receives paths as JSON, which cannot represent this name.
        let odd: std::ffi::OsString =
            std::os::unix::ffi::OsStringExt::from_vec(b"caf\xe9.txt".to_vec());
        std::fs::write(place.path().join(odd), "words").unwrap();
        let gateway = place.serve();
        let read = |name: &str| {
            let path = place.path().join(name);
            call(&gateway, "read", &json!({ "path": path })).1
        };
        let secrets = [
            ".env",
            "settings.txt",
            "apps/a/.env.local",
            "apps/a/b/c/d/e/.envrc",
            "config/dev.txt",
            "target/.env",
        ];
        let later = [".env.production", ".npmrc", "apps/a/.env"];
        let seen = ["README.md", "apps/a/index.js", "apps/a/b/c/d/e/lib/x.txt"];
        for name in seen {
            assert_eq!(read(name), "words", "{name}");
        }
        for name in [".git/config", ".env.dev"] {
            assert_eq!(read(name).contains("hunter2"), !contained, "{name}");
        }
        for name in secrets {
            assert_eq!(read(name).contains("hunter2"), !contained, "{name}");
        }
        // Like an editor, this replaces the old file by a new one.
        let save = |name: &str, text: &str| {
            place.write("saved", text);
            std::fs::rename(place.path().join("saved"), place.path().join(name)).unwrap();
        };
        for name in secrets.iter().chain(&later) {
            save(name, "KEY=hunter3");
        }
        save("src/a.txt", "two");
        save("src/b.txt", "new");
        for name in secrets.iter().chain(&later) {
            let got = read(name);
            assert_eq!(got.contains("hunter"), !contained, "{name}: {got}");
        }
        assert_eq!((read("src/a.txt"), read("src/b.txt")), ("two".to_owned(), "new".to_owned()));
        gateway.stop();
    }
}

/// A folder that a server can write is not divided into parts.
#[test]
fn a_server_that_may_write_its_project_writes_in_all_of_it() {
    let home = tempfile::tempdir().unwrap();
    let sandbox = "sandbox = { base = \"server\", fs = { write = [\".\"] } }\n";
    let place = curious(sandbox, Some(home.path()));
    place.write("package.json", "{}").write("src/a.txt", "one").write(".env", "KEY=hunter2");
    // A secret in a folder with a name that is not UTF-8 is covered too.
    let odd: std::ffi::OsString = std::os::unix::ffi::OsStringExt::from_vec(b"caf\xe9".to_vec());
    std::fs::create_dir(place.path().join(&odd)).unwrap();
    std::fs::write(place.path().join(&odd).join(".env"), "KEY=hunter2").unwrap();
    let gateway = place.serve();
    for name in ["src/a.txt", "src/new", "package.json", "new"] {
        let path = place.path().join(name);
        let (_, got) = call(&gateway, "write", &json!({ "path": path }));
        assert_eq!(got, "written", "{name}");
    }
    let (_, got) = call(&gateway, "read", &json!({ "path": place.path().join(".env") }));
    assert!(!got.contains("hunter2"), "{got}");
    gateway.stop();
}

/// The call's warning, the operator's log and the start name the profile and the setting.
#[test]
fn what_a_sandbox_stops_is_told_with_the_line_that_would_allow_it() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let place = curious("", Some(home));
    let (path, line) = (place.path().join("new"), "fs = { write = [");
    let arguments = json!({ "path": path }).to_string();
    let (result, _) = place.json(&["call", "curious.write", "--args", &arguments]);
    let warning = result["warnings"][0].as_str().unwrap_or_else(|| panic!("{result}"));
    assert!(warning.starts_with("sandbox-denied: the sandbox profile `server`"), "{result}");
    assert!(warning.contains(line), "{result}");
    let records = place.records(result["callId"].as_str().unwrap());
    assert!(records.logs[0]["internal"].as_str().unwrap().contains(line), "{:?}", records.logs);
    // The setting allows the write.
    let line = warning.split('`').find(|part| part.starts_with("sandbox = ")).unwrap();
    let before = std::fs::read_to_string(place.path().join("toolbooth.toml")).unwrap();
    place.write("toolbooth.toml", &format!("{before}{line}\n"));
    let (result, _) = place.json(&["call", "curious.write", "--args", &arguments]);
    assert_eq!(result["status"], "succeeded", "{result}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "written");
    // `doctor` also reports it for a server that cannot start, without advice to start it manually.
    let settings = "[servers.secretive]\ncommand = \"/usr/bin/python3\"\n\
                    args = [\"-c\", \"open('HOME/.netrc')\"]\n";
    std::fs::write(home.join(".netrc"), "x").unwrap();
    let refused = "[servers.far]\ncommand = \"/usr/bin/python3\"\nargs = [\"-c\", \
                   \"import socket; socket.create_connection(('10.0.0.1', 443)).recv(1)\"]\n\
                   [servers.small]\ncommand = \"/usr/bin/python3\"\nargs = [\"-c\", \"x = 1\"]\n\
                   sandbox = { base = \"server\", fs = { read = [\"/no/such\"] } }\n";
    let settings = settings.replace("HOME", &home.display().to_string());
    place.write("toolbooth.toml", &format!("{settings}{refused}"));
    let output = place.run(&["doctor"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("does not show") && text.contains(".netrc\"] } }"), "{text}");
    assert!(text.contains("the sandbox refused `10.0.0.1:443`"), "{text}");
    assert!(text.contains("finding `/no/such`"), "{text}");
    assert!(!text.contains("start it by hand"), "{text}");
}

#[test]
fn doctor_helps_with_each_kind_of_server() {
    let place = Place::new();
    let settings = "[servers.near]\ncommand = \"/bin/false\"\n[servers.far]\nurl = \"http://127.0.0.1:1/mcp\"\n";
    place.write("toolbooth.toml", settings);
    let (report, _) = place.json(&["doctor"]);
    let remedy = |name: &str| {
        let checks = report["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["name"] == name);
        let check = check.unwrap_or_else(|| panic!("{name}: {report}"));
        assert_eq!(check["state"], "failed", "{report}");
        check["remedy"].as_str().unwrap().to_owned()
    };
    assert!(remedy("mcp:near").starts_with("start it by hand with the same command"), "{report}");
    assert!(remedy("mcp:far").starts_with("see whether a server answers at its `url`"), "{report}");
}

/// Returns the addresses of the package registries that the runners on this machine use, which can be private
/// mirrors.
fn mirrors(runners: &Path) -> Vec<IpAddr> {
    let npm = Command::new("npm").args(["config", "get", "registry"]).output().unwrap();
    let python =
        "from pip._internal.models.index import PyPI as p; print(p.url, p.file_storage_domain)";
    let pip = Command::new(runners.join("bin/python")).args(["-c", python]).output().unwrap();
    let text = [npm.stdout, pip.stdout].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    text.join(" ")
        .split_whitespace()
        .filter_map(|url| {
            let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
            let host = rest.split('/').next()?;
            (host, 443).to_socket_addrs().ok()
        })
        .flatten()
        .map(|address| address.ip())
        .collect()
}

/// Checks that each runner starts a real server in the default profile, with a fresh home.
fn runners_start(ordinary: bool) {
    let Some(folder) = set_up("runners") else { return };
    let (npm, python) = (folder.join("npm"), folder.join("python"));
    let place = Place::new();
    let notes = place.path().join("notes");
    std::fs::create_dir(&notes).unwrap();
    let repository = place.path().join("repository");
    let made = Command::new("git").args(["init", "-q"]).arg(&repository).status().unwrap();
    assert!(made.success());
    let home = place.path().join("home");
    std::fs::create_dir(&home).unwrap();
    std::fs::write(home.join(".npmrc"), "audit=false\n").unwrap();
    let server = |name: &str, command: &str, arguments: &[&str]| {
        format!(
            "[servers.{name}]\ncommand = {command:?}\nargs = {arguments:?}\nstartup_timeout_ms = 180000\n"
        )
    };
    let venv = |name: &str| python.join("bin").join(name).display().to_string();
    let mirrors: Vec<String> = mirrors(&python).iter().map(|address| address.to_string()).collect();
    let mut text = format!("[sandbox]\nallow_addresses = {mirrors:?}\n");
    let (everything, filesystem) = (
        "@modelcontextprotocol/server-everything@2026.8.31",
        "@modelcontextprotocol/server-filesystem@2026.8.31",
    );
    let memory = "@modelcontextprotocol/server-memory@2026.8.31";
    let time = "mcp-server-time==2026.10.19";
    text.push_str(&server("npx", "npx", &["-y", everything]));
    text.push_str(&server("files", "npx", &["-y", filesystem, "notes"]));
    text.push_str(&server("bunx", "bunx", &[memory]));
    text.push_str(&server("global", "mcp-server-memory", &[]));
    text.push_str(&server("uvx", "uvx", &[time]));
    text.push_str(&server("pipx", "pipx", &["run", time]));
    text.push_str(&server("git", &venv("mcp-server-git"), &["--repository", "repository"]));
    text.push_str(&server("fetch", &venv("python"), &["-m", "mcp_server_fetch"]));
    place.write("toolbooth.toml", &text);
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{}:{path}", npm.join("bin").display(), python.join("bin").display());
    let mut command = place.command(&["discover", "--format", "json"]);
    command.env("HOME", &home).env("PATH", path).stdin(Stdio::null());
    if ordinary {
        let own = format!("{ORDINARY}:{ORDINARY}");
        let owned = Command::new("chown")
            .arg("-R")
            .arg(own)
            .args([place.path(), place.state()])
            .status()
            .unwrap();
        assert!(owned.success());
        command.uid(ORDINARY).gid(ORDINARY);
    }
    let output = command.output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{words}"));
    let sources = found["sources"].as_array().unwrap();
    assert_eq!(sources.len(), 8, "{found}");
    for source in sources {
        assert!(source.get("unhealthy").is_none(), "{source}");
        assert!(source["tools"].as_u64().unwrap() > 0, "{source}");
    }
    let mut left: Vec<PathBuf> =
        std::fs::read_dir(&home).unwrap().map(|entry| entry.unwrap().path()).collect();
    left.retain(|path| !path.ends_with(".npmrc"));
    assert!(left.is_empty(), "the home of the user stays as it was: {left:?}");
    let own = place.path().join(".toolbooth/servers/uvx");
    assert_eq!(own.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    assert!(own.join(".cache").is_dir(), "caches are the server's own");
}

#[test]
fn package_runners_start_real_servers() {
    runners_start(false);
}

#[test]
fn package_runners_start_real_servers_for_an_ordinary_user() {
    if !is_root() {
        // In this case the other test runs as an ordinary user.
        skip("root");
        return;
    }
    runners_start(true);
}
