//! Makes the calls whose API differs between the compared releases, in this release.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use toolbooth_audit::Ledger;
use toolbooth_contracts::contract::AdapterId;
use toolbooth_contracts::{Dispatch, Executor, ToolOutput, ToolPattern};
use toolbooth_policy::rules::{HistoryWindow, HistoryWindows, RuleFile, RuleSet, Within};
use toolbooth_policy::{Authorizer, FeatureFlags};
use toolbooth_proxy::{Executors, ProxyParts, ToolProxy, World, Worlds};
use toolbooth_registry::ToolRegistry;

pub(crate) fn echo(dispatch: &Dispatch) -> ToolOutput {
    ToolOutput::text(dispatch.arguments.as_str())
}

/// Returns 201 rules, of which one permits everything and the others name other tools, some with a window.
fn rules_of_others() -> Arc<RuleSet> {
    static RULES: OnceLock<Arc<RuleSet>> = OnceLock::new();
    Arc::clone(RULES.get_or_init(read_rules))
}

fn read_rules() -> Arc<RuleSet> {
    let mut text = "@id(\"all\") permit (principal, action, resource);\n".to_owned();
    for number in 0..100 {
        writeln!(
            text,
            "@id(\"a{number}\") forbid (principal, action == Action::\"other.do{number}\", resource)\n\
             when {{ context.args has text && context.args.text like \"*{number}\" }};\n\
             @id(\"h{number}\") forbid (principal, action == Action::\"other.do{number}\", resource)\n\
             when {{ context.history.others.count > {number} }};"
        )
        .expect("a text");
    }
    let window = HistoryWindow {
        tool: ToolPattern::try_from("other.*".to_owned()).expect("a pattern"),
        length: Duration::from_secs(86_400),
        sum: None,
        within: Within::Caller,
    };
    let windows = HistoryWindows::new(BTreeMap::from([("others".to_owned(), window)]));
    let file = RuleFile { name: "bench.cedar".into(), text, cases: None };
    RuleSet::read(&[file], &windows.expect("is valid")).expect("are valid")
}

/// Returns a proxy; if it `is_ruled`, with rules of which only the one that permits everything is about the tool.
pub(crate) fn proxy(
    registry: ToolRegistry,
    ledger: Arc<dyn Ledger>,
    executor: Arc<dyn Executor>,
    is_ruled: bool,
) -> ToolProxy {
    let policy = Authorizer::new(FeatureFlags::ON);
    let policy = match is_ruled {
        true => policy.with_engine(Arc::new(rules_of_others())),
        false => policy,
    };
    ToolProxy::new(ProxyParts {
        shapes: toolbooth_contracts::secret::SecretShapes::with([
            toolbooth_adapters::secret_rules::shapes(),
        ]),
        ..ProxyParts::new(
            Worlds::new(World::new(policy).with_registry(registry)),
            ledger,
            Executors::default().with(AdapterId::Local("bench".into()), executor),
        )
    })
}
