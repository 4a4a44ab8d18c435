//! Stage 4: the door's rules, hygiene, the compiled input schema, the size, and the key of a keyed
//! tool. The arguments are final from here on.
//!
//! Path: 4. Doc: call-path.md#stages

use toolbooth_contracts::arguments::{Unfit, UnfitArguments};
use toolbooth_contracts::result::ArgumentError;
use toolbooth_contracts::{Arguments, ErrorCode, GuardedArguments};
use toolbooth_policy::Access;

use super::keys;
use super::resolve::{FoundTool, Resolved};
use crate::entry::Refused;
use crate::state::ProxyState;
use crate::trail::{CallTrail, Input};

/// Arguments that fit the tool. Only this stage constructs it.
pub(super) struct Guarded {
    pub(super) found: FoundTool,
    pub(super) access: Access,
    pub(super) arguments: GuardedArguments,
    pub(super) natural_key: Option<String>,
    _stage: (),
}

pub(super) fn guard(state: &ProxyState, resolved: Resolved) -> Result<Guarded, Refused> {
    let Resolved { mut found, access, .. } = resolved;
    let contract = found.tool.contract();
    let trail = &mut found.entered.trail;
    let parsed = match std::mem::replace(&mut trail.input, Input::None) {
        Input::Raw(text) => Arguments::parse(text),
        Input::Judged(arguments) => Ok(arguments),
        Input::None | Input::Digest => Ok(Arguments::default()),
    };
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(UnfitArguments { text, reason }) => {
            trail.input = Input::Raw(text);
            if let Unfit::NoObject(tree) = &reason {
                digest(state, trail, tree);
            }
            return Err(invalid_arguments(found.entered.trail, &[reason.to_error()]));
        }
    };
    // The door's rules can reveal facts about the tool, so they apply only if the caller has the
    // permissions that the tool requires. The policy refuses other callers.
    let rules = found.entered.asked.rules.clone().filter(|_| access.has_permissions());
    let ruled = match rules {
        Some(rules) => rules.apply(contract, arguments.clone()),
        None => Ok(arguments.clone()),
    };
    let (arguments, objection) = match ruled {
        Ok(changed) => (changed, None),
        Err(error) => (arguments, Some(error)),
    };
    digest(state, trail, arguments.tree());
    trail.input = Input::Judged(arguments.clone());
    if let Some(error) = objection {
        return Err(invalid_arguments(found.entered.trail, &[error]));
    }
    let arguments = match found.tool.guard(arguments) {
        Ok(arguments) => arguments,
        Err(errors) => return Err(invalid_arguments(found.entered.trail, &errors)),
    };
    match keys::natural(contract, arguments.tree()) {
        Ok(natural_key) => Ok(Guarded { found, access, arguments, natural_key, _stage: () }),
        Err(missing) => Err(Refused::new(found.entered.trail, ErrorCode::MissingIdempotencyKey)
            .saying(missing.to_string())
            .with("keyField", missing.field)),
    }
}

/// Stores the digests of the sent arguments, by the current key of the store and by its earlier keys.
fn digest(state: &ProxyState, trail: &mut CallTrail, tree: &serde_json::Value) {
    let (digest, older) = state.parts.ledger.digester().of_all(tree);
    trail.args_digest = Some(digest);
    trail.older_args_digests = older;
}

fn invalid_arguments(trail: Box<CallTrail>, errors: &[ArgumentError]) -> Refused {
    let told: Vec<String> = errors
        .iter()
        .map(|error| match error.path.as_str() {
            "" => error.message.clone(),
            path => format!("{path}: {}", error.message),
        })
        .collect();
    let sentence = ErrorCode::InvalidArgs.safe_sentence();
    Refused::new(trail, ErrorCode::InvalidArgs)
        .saying(format!("{sentence}: {}", told.join("; ")))
        .with("errors", serde_json::to_value(errors).unwrap_or_default())
}
