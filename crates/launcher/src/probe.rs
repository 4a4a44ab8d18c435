//! Detects the primitives of this machine: tries each one in a process that ends at once.
//!
//! Path: 7. Doc: execution.md#primitives

use std::io;
use std::path::PathBuf;

use rustix::process::{Signal, WaitOptions, kill_process, waitpid};

use crate::namespaces::{FRESH_BASE, map_ids, namespaces};
use crate::order::{Limits, Net, Primitive, SandboxSpec};
use crate::wire::Found;
use crate::{cgroup, landlocked, root, sys, syscalls};

/// Maximum length of a reason, in bytes.
const REASON_BYTES_MAX: u64 = 4096;

/// Tries all primitives.
pub(crate) fn all(cgroups: &[PathBuf]) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    for primitive in Primitive::ALL {
        let needs: &[Primitive] = match primitive {
            Primitive::UserNamespace
            | Primitive::Landlock
            | Primitive::Seccomp
            | Primitive::MemoryCgroup => &[],
            Primitive::PrivateRoot => {
                &[Primitive::UserNamespace, Primitive::PidNamespace, Primitive::MountNamespace]
            }
            _ => &[Primitive::UserNamespace],
        };
        let lacks = needs
            .iter()
            .find(|need| found.iter().any(|one| one.primitive == **need && one.missing.is_some()));
        let tried = match lacks {
            Some(need) => Err(io::Error::other(format!("it needs the {}", need.as_str()))),
            None => try_one(primitive, cgroups),
        };
        found.push(match tried {
            Ok(detail) => Found { primitive, missing: None, detail },
            Err(error) => Found { primitive, missing: Some(error.to_string()), detail: None },
        });
    }
    found
}

fn try_one(primitive: Primitive, cgroups: &[PathBuf]) -> io::Result<Option<String>> {
    match primitive {
        Primitive::MemoryCgroup => {
            let mut last = io::Error::other("no cgroup is the gateway's own");
            for parent in cgroups {
                match cgroup::probe(parent) {
                    Ok(()) => return Ok(Some(parent.display().to_string())),
                    Err(error) => last = error,
                }
            }
            Err(last)
        }
        Primitive::Landlock => {
            let version = sys::landlock_version()?;
            elsewhere(0, || landlocked::apply(&SandboxSpec::default(), None))?;
            Ok(Some(format!("version {version}")))
        }
        Primitive::Seccomp => elsewhere(0, || syscalls::apply(&Net::None, true)).map(|()| None),
        Primitive::PrivateRoot => {
            let needs =
                [Primitive::UserNamespace, Primitive::PidNamespace, Primitive::MountNamespace];
            let sandbox_spec =
                SandboxSpec { tmp_mb: 1, limits: Limits::default(), ..SandboxSpec::default() };
            elsewhere(namespaces(&needs), || {
                root::enter(&sandbox_spec, Vec::new(), &PathBuf::from("/"))
                    .map_err(|(step, error)| io::Error::other(format!("{step}: {error}")))
            })
            .map(|()| None)
        }
        _ => {
            let flags = namespaces(&[Primitive::UserNamespace, primitive]);
            elsewhere(flags, || Ok(())).map(|()| None)
        }
    }
}

/// Runs `what` in a new process with these namespaces, and returns its error.
fn elsewhere(namespaces: libc::c_int, what: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    use std::io::{Read, Write};
    let (gate, mut open) = io::pipe()?;
    let (told, mut tell) = io::pipe()?;
    let Some(child) = sys::fork_into(namespaces)? else {
        drop((open, told));
        let mut gate = gate;
        let mut go = [0u8];
        if gate.read_exact(&mut go).is_ok()
            && let Err(error) = what()
        {
            let _ = tell.write_all(error.to_string().as_bytes());
        }
        std::process::exit(0);
    };
    drop((gate, tell));
    let mapped = if namespaces & libc::CLONE_NEWUSER == 0 {
        Ok(())
    } else {
        let fresh = rustix::process::geteuid().is_root().then_some(FRESH_BASE);
        map_ids(child, fresh).map_err(|(step, error)| io::Error::other(format!("{step}: {error}")))
    };
    let mut reason = String::new();
    if mapped.is_ok() {
        open.write_all(b".")?;
        drop(open);
        told.take(REASON_BYTES_MAX).read_to_string(&mut reason)?;
    } else {
        let _ = kill_process(child, Signal::KILL);
    }
    let status = waitpid(Some(child), WaitOptions::empty())?;
    mapped?;
    let fine = status.is_some_and(|(_, status)| status.exit_status() == Some(0));
    match (reason.is_empty(), fine) {
        (true, true) => Ok(()),
        (true, false) => Err(io::Error::other("the kernel ended the attempt")),
        _ => Err(io::Error::other(reason)),
    }
}
