use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use toolbooth_contracts::{CallContext, Caller, Guard, Identity, ToolContract, ToolPattern};

use super::*;
use crate::{
    Budget, CallerRights, CallerSets, EngineError, FeatureFlags, Pauses, PolicyEngine, Question,
    Verdict, Whitelist,
};

struct Says(Result<bool, ()>);

impl PolicyEngine for Says {
    fn judge(&self, _: &Question<'_>) -> Result<Verdict, EngineError> {
        match self.0 {
            Ok(true) => Ok(Verdict::Permit { rule: "yes".into(), approval: None }),
            Ok(false) => Ok(Verdict::Deny { rule: "no".into(), reason: "No.".into() }),
            Err(()) => Err(EngineError("broken".into())),
        }
    }
    fn version(&self) -> &str {
        "1"
    }
}

fn contract(policy: &Value) -> ToolContract {
    let mut own = json!({ "timeoutMs": 1_000, "trustLevel": "trusted" });
    for (name, value) in policy.as_object().into_iter().flatten() {
        own[name] = value.clone();
    }
    let entry = json!({
        "name": "a.b", "input_schema": { "type": "object" }, "output_schema": {},
        "execution": { "localRuntimeId": "x" }, "permissions": ["write:a"], "policy": own,
    });
    Guard::default().validate_entry(&entry).unwrap()
}

#[test]
fn the_last_step_is_the_one_that_decides_the_call() {
    let all = || Authorizer::new(FeatureFlags::ON);
    let rights = CallerRights { grants: Vec::new(), ..CallerRights::everything() };
    let hidden = CallerRights { tools: Some(Vec::new()), ..rights.clone() };
    let with = |rights: CallerRights| {
        let sets = BTreeMap::from([("local".to_owned(), (Vec::new(), rights))]);
        all().with_callers(CallerSets::new(sets).unwrap())
    };
    let says = |verdict| all().with_engine(Arc::new(Says(verdict)));
    let paused: Pauses =
        [toolbooth_contracts::order::PauseTarget::Caller("local".into())].into_iter().collect();
    let other = ToolPattern::try_from("c.*".to_owned()).unwrap();
    let active = ToolStatus::Active;
    let plain = json!({});
    for (policy, status, settings, objection, step, decision) in [
        (Authorizer::new(FeatureFlags::default()), &active, &plain, None, "flags", "deny"),
        (with(hidden), &active, &plain, None, "tool-set", "deny"),
        (
            all().with_whitelist(Whitelist::only(vec![other])),
            &active,
            &plain,
            None,
            "whitelist",
            "deny",
        ),
        (all(), &ToolStatus::Quarantined("x".into()), &plain, None, "status", "deny"),
        (all().with_pauses(paused), &active, &plain, None, "status", "deny"),
        (all(), &active, &plain, Some("`a` is missing"), "arguments", "deny"),
        (with(rights), &active, &plain, None, "permissions", "deny"),
        (says(Ok(false)), &active, &plain, None, "rules", "deny"),
        (says(Err(())), &active, &plain, None, "rules", "deny"),
        (says(Ok(true)), &active, &json!({ "approval": "always" }), None, "approval", "approval"),
        (says(Ok(true)), &active, &json!({ "rateLimitPerMin": 5 }), None, "charges", "permit"),
        (says(Ok(true)), &active, &json!({ "rateLimitPerMin": 0 }), None, "charges", "deny"),
        (
            all().with_budget(Budget { daily: Some(1_000_000), ..Budget::default() }),
            &active,
            &json!({ "costUnits": 2 }),
            None,
            "charges",
            "deny",
        ),
    ] {
        let contract = contract(settings);
        let caller = Caller::authenticated(Identity::local());
        let call = AskedCall {
            caller: &caller,
            contract: &contract,
            arguments: &Value::Null,
            claimed: &CallContext::default(),
            at: "2026-01-01T00:00:00.000Z",
        };
        let told = policy.explain(status, &call, objection, &|_| History::new());
        assert_eq!(told.decision, decision, "{told:?}");
        let deciding = told
            .steps
            .iter()
            .find(|one| matches!(one.result, StepResult::Denies | StepResult::Asks));
        match deciding {
            Some(deciding) => assert_eq!(deciding.step, step, "{told:?}"),
            None => assert_eq!((told.steps.len(), step), (STEPS.len(), "charges")),
        }
        let access = policy.access(&caller, &contract, status);
        let decided = access.and_then(|access| policy.authorize(access, &call));
        let same = match &decided {
            // Charges are taken in the claim.
            Ok(_) if step == "charges" => true,
            Ok(permit) => permit.approval().is_some() == (decision == "approval"),
            Err(denial) => told.reason.starts_with(&denial.reason),
        };
        assert!(same || objection.is_some(), "{told:?} {decided:?}");
    }
}
