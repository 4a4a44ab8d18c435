//! Binds a set of rules to the tools of a world: which rules can apply to each, and whether they fit it.
//!
//! Path: 5. Doc: policy.md#binding

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

use cedar_policy::Entity;
use toolbooth_contracts::contract::ToolContract;
use toolbooth_contracts::id::nearest;
use toolbooth_contracts::trust::TrustLevel;

use super::arguments::ArgumentTypes;
use super::history::Unsummed;
use super::parties::LastParties;
use super::schema;
use super::scope::Group;
use super::set::RuleSet;
use super::slice::Slice;
use super::source::Rule;
use crate::engine::EngineTool;
use crate::rule_finding::{RuleCode, RuleFinding};

/// Threads that validate rules.
const THREADS_MAX: usize = 4;
/// Tools for which one thread is enough.
const TOOLS_PER_THREAD: usize = 50;
/// Arguments of a tool that notes name.
const ARGUMENTS_NAMED_MAX: usize = 20;

/// Rules bound to tools.
#[derive(Debug)]
pub(super) struct BoundRules {
    pub(super) set: Arc<RuleSet>,
    pub(super) tools: HashMap<String, Arc<BoundTool>>,
    /// The rules that can apply to prompts and resources.
    pub(super) items: Arc<Slice>,
}

/// A tool and the rules that can apply to it.
#[derive(Debug)]
pub(super) struct BoundTool {
    /// The digest of the contract to which they are bound.
    digest: String,
    pub(super) slice: Arc<Slice>,
    /// The groups of the rules in which the tool is.
    pub(super) groups: Vec<String>,
    /// The windows that its rules read.
    pub(super) reading: BTreeSet<String>,
    /// The windows that count its calls.
    pub(super) counting: Vec<String>,
    /// Those of them that cannot sum its calls, by the input schema of the tool.
    pub(super) unsummed: Vec<(String, Unsummed)>,
    /// Its permissions, if a rule names a group by its permission.
    pub(super) permissions: Vec<String>,
    /// The types of its arguments, if a rule names the tool.
    pub(super) arguments: Option<ArgumentTypes>,
    /// Why the rules do not fit the tool.
    pub(super) failure: Option<String>,
    findings: Vec<RuleFinding>,
    /// The tool and its action as entities, with the trust for which they were made.
    pub(super) entities: OnceLock<(TrustLevel, [Entity; 2])>,
    pub(super) parties: LastParties,
}

impl BoundRules {
    /// Binds rules to tools. For unchanged tools, it keeps the bindings of `before`.
    pub(super) fn of(set: &Arc<RuleSet>, tools: &[EngineTool<'_>], before: Option<&Self>) -> Self {
        let general = General::of(set);
        let mut slices: HashMap<Vec<usize>, Arc<Slice>> = HashMap::new();
        let mut bound: HashMap<String, Arc<BoundTool>> = HashMap::with_capacity(tools.len());
        let mut fresh = Vec::new();
        for tool in tools {
            let id = tool.contract.tool_id.as_str();
            let known = before.and_then(|before| before.tools.get(id));
            match known.filter(|known| known.digest == tool.digest) {
                Some(known) => {
                    let slice = Arc::clone(&known.slice);
                    slices.entry(slice.rules.clone()).or_insert(slice);
                    bound.insert(id.to_owned(), Arc::clone(known));
                }
                None => fresh.push(tool),
            }
        }
        let typed = typed(set, &fresh);
        let names_permissions =
            set.groups.values().any(|group| matches!(group, Group::Permission(_)));
        for tool in fresh {
            let id = tool.contract.tool_id.as_str();
            let rules = general.rules(set, tool.contract);
            let slice = slices
                .entry(rules)
                .or_insert_with_key(|rules| Arc::new(Slice::of_tools(set, rules.clone())));
            let (arguments, findings) = match typed.get(id) {
                Some((arguments, findings)) => (Some(arguments.clone()), findings.clone()),
                None => (None, Vec::new()),
            };
            let failure = findings.iter().find(|finding| finding.code.is_error());
            let groups = set.groups.iter().filter(|(_, group)| group.has(tool.contract));
            let counting = set.windows.counting(id);
            let unsummed = match set.windows.has_sums(&counting) {
                true => {
                    let own = || ArgumentTypes::of(&tool.contract.input_schema);
                    let arguments = arguments.clone().unwrap_or_else(own);
                    set.windows.unsummed(&counting, &arguments)
                }
                false => Vec::new(),
            };
            let permissions = match names_permissions {
                true => tool.contract.permissions.iter().map(ToString::to_string).collect(),
                false => Vec::new(),
            };
            let own = BoundTool {
                digest: tool.digest.to_owned(),
                slice: Arc::clone(slice),
                groups: groups.map(|(name, _)| name.clone()).collect(),
                reading: set.windows.read_by(&slice.reads),
                counting,
                unsummed,
                permissions,
                arguments,
                failure: failure.map(ToString::to_string),
                findings,
                entities: OnceLock::new(),
                parties: LastParties::default(),
            };
            bound.insert(id.to_owned(), Arc::new(own));
        }
        let items = match before {
            Some(before) => Arc::clone(&before.items),
            None => Arc::new(Slice::of_items(set, general.items.clone())),
        };
        Self { set: Arc::clone(set), tools: bound, items }
    }

    /// Returns the findings about the rules and the tools that they name.
    pub(super) fn findings(&self) -> Vec<RuleFinding> {
        let mut findings: Vec<RuleFinding> = self.set.warnings().to_vec();
        let mut named: Vec<&String> = self.set.by_tool.keys().collect();
        named.sort();
        for id in named {
            match self.tools.get(id) {
                Some(tool) => findings.extend(tool.findings.iter().cloned()),
                None => findings.extend(self.unbound_tool(id)),
            }
        }
        findings.extend(self.unbound_conditions());
        findings.extend(self.unbound_groups());
        findings.extend(self.unbound_windows());
        // Tools with the same rules have the same slice.
        let mut slices: Vec<&Arc<Slice>> = self.tools.values().map(|tool| &tool.slice).collect();
        slices.sort_by(|a, b| a.rules.cmp(&b.rules));
        slices.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let mut bypassed = BTreeSet::new();
        for slice in slices {
            let permits = || {
                let rules = slice.rules.iter().map(|index| self.set.rule(*index));
                rules.filter(|rule| !rule.forbids)
            };
            let Some(open) = permits().find(|rule| rule.approval().is_none()) else { continue };
            for rule in permits().filter(|rule| rule.approval().is_some()) {
                if bypassed.insert(rule.id()) {
                    let message = format!(
                        "`{}` asks for an approval, but `{}` permits calls without one",
                        rule.id(),
                        open.id()
                    );
                    let finding = RuleFinding::new(
                        RuleCode::ApprovalBypassed,
                        rule.location.clone(),
                        message,
                    );
                    findings.push(finding.hint(
                        "write `@approval` before a `forbid`: it holds whatever is permitted",
                    ));
                }
            }
        }
        findings
    }
}

/// The rules that are about groups of tools, about every tool, and about items.
struct General<'s> {
    every: Vec<usize>,
    by_group: BTreeMap<&'s str, Vec<usize>>,
    items: Vec<usize>,
}

impl<'s> General<'s> {
    fn of(set: &'s RuleSet) -> Self {
        let mut own = Self { every: Vec::new(), by_group: BTreeMap::new(), items: Vec::new() };
        for (index, rule) in set.rules.iter().enumerate() {
            if rule.scope.every_tool {
                own.every.push(index);
            }
            if rule.scope.items {
                own.items.push(index);
            }
            for group in &rule.scope.groups {
                own.by_group.entry(group).or_default().push(index);
            }
        }
        own
    }

    /// Returns the rules that can apply to a tool, in the order of their files.
    fn rules(&self, set: &RuleSet, contract: &ToolContract) -> Vec<usize> {
        let mut rules = self.every.clone();
        for (name, own) in &self.by_group {
            if set.groups.get(*name).is_some_and(|group: &Group| group.has(contract)) {
                rules.extend(own);
            }
        }
        rules.extend(set.by_tool.get(contract.tool_id.as_str()).into_iter().flatten());
        rules.sort_unstable();
        rules.dedup();
        rules
    }
}

/// The types of a tool's arguments, and the findings of the rules that name it.
type Typed = (ArgumentTypes, Vec<RuleFinding>);

/// Validates the rules that name these tools, each tool by itself.
fn typed(set: &RuleSet, tools: &[&EngineTool<'_>]) -> HashMap<String, Typed> {
    let named: Vec<&ToolContract> = tools
        .iter()
        .map(|tool| tool.contract)
        .filter(|contract| set.by_tool.contains_key(contract.tool_id.as_str()))
        .collect();
    let validate = |contracts: &[&ToolContract]| -> Vec<(String, Typed)> {
        let typed = contracts
            .iter()
            .map(|contract| (contract.tool_id.as_str().to_owned(), typed_rules(set, contract)));
        typed.collect()
    };
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = available.min(THREADS_MAX).min(named.len() / TOOLS_PER_THREAD + 1);
    if threads == 1 {
        return validate(&named).into_iter().collect();
    }
    let chunk = named.len().div_ceil(threads);
    std::thread::scope(|scope| {
        let all: Vec<_> =
            named.chunks(chunk).map(|some| (some, scope.spawn(|| validate(some)))).collect();
        // A part whose thread panicked is validated here, where a panic is the caller's.
        let all = all.into_iter().map(|(some, one)| one.join().unwrap_or_else(|_| validate(some)));
        all.flatten().collect()
    })
}

fn typed_rules(set: &RuleSet, contract: &ToolContract) -> Typed {
    let id = contract.tool_id.as_str();
    let arguments = ArgumentTypes::of(&contract.input_schema);
    let rules = set.by_tool.get(id).map(Vec::as_slice).unwrap_or_default();
    let schema = schema::of_tool(contract, &arguments, &set.windows, &set.mentioned(rules));
    let found = set.validate(rules, schema, &arguments.names());
    let findings = found.into_iter().map(|finding| {
        let left_out = arguments.left_out.iter().find(|(pointer, _)| {
            let name = pointer.rsplit('/').next().unwrap_or_default();
            finding.message.contains(&format!(".{name}`"))
        });
        match left_out {
            Some((pointer, reason)) => finding
                .hint(format!("rules cannot read the argument `{pointer}` of this tool: {reason}")),
            None => finding,
        }
        .of_tool(id)
    });
    let mut findings: Vec<RuleFinding> = findings.collect();
    if !findings.iter().any(|finding| finding.code.is_error()) {
        findings
            .extend(rules.iter().filter_map(|index| unreadable(set.rule(*index), &arguments, id)));
        findings
            .extend(argument_findings(set, rules, &arguments).map(|finding| finding.of_tool(id)));
    }
    (arguments, findings)
}

/// Returns findings about the arguments of a tool that rules read.
fn argument_findings(
    set: &RuleSet,
    rules: &[usize],
    arguments: &ArgumentTypes,
) -> impl Iterator<Item = RuleFinding> {
    let all = rules.iter().map(|index| set.rule(*index));
    let mut reading = all.filter(|rule| rule.reads.of("args").is_some());
    let first = reading.next();
    let left_out = &arguments.left_out;
    let unreadable = first.filter(|_| !left_out.is_empty()).map(|rule| {
        let told = left_out.iter().take(ARGUMENTS_NAMED_MAX);
        let mut told: Vec<String> =
            told.map(|(pointer, reason)| format!("`{pointer}` ({reason})")).collect();
        let more = left_out.len() - told.len();
        if more > 0 {
            told.push(format!("{more} more"));
        }
        let message = format!("rules cannot read these arguments: {}", told.join(", "));
        RuleFinding::new(RuleCode::UnreadableArgument, rule.location.clone(), message)
    });
    let mut known = BTreeSet::new();
    let (mut decimals, mut more) = (Vec::new(), 0_usize);
    for rule in first.into_iter().chain(reading) {
        let Some(reads) = rule.reads.of("args") else { continue };
        for pointer in arguments.record.decimals(&reads) {
            if !known.insert(pointer.clone()) {
                continue;
            }
            if known.len() > ARGUMENTS_NAMED_MAX {
                more += 1;
            } else {
                let message = format!(
                    "`{}` reads the argument `{pointer}` as a decimal: one with more than four digits \
                     after the point, or one that is too large, denies the call",
                    rule.id()
                );
                let location = rule.location.clone();
                decimals.push(RuleFinding::new(RuleCode::DecimalArgument, location, message));
            }
        }
    }
    let more = first.filter(|_| more > 0).map(|rule| {
        let message = format!("{more} more arguments of the tool are read as decimals");
        RuleFinding::new(RuleCode::DecimalArgument, rule.location.clone(), message)
    });
    unreadable.into_iter().chain(decimals).chain(more)
}

/// Returns the finding of a rule that reads an argument that it cannot read. In a `has` test, Cedar would
/// treat the argument as missing.
fn unreadable(rule: &Rule, arguments: &ArgumentTypes, tool: &str) -> Option<RuleFinding> {
    let pointer = arguments.record.missing(&*rule.reads.of("args")?)?;
    let reason = arguments
        .left_out
        .iter()
        .filter(|(own, _)| pointer.starts_with(own.trim_end_matches('*')))
        .max_by_key(|(own, _)| own.len())
        .map_or("the input schema of the tool does not name it", |(_, reason)| reason);
    let message =
        format!("`{}` reads the argument `{pointer}`, which rules cannot read", rule.id());
    let finding = RuleFinding::new(RuleCode::Type, rule.location.clone(), message).of_tool(tool);
    let name = pointer.rsplit('/').next().unwrap_or_default();
    Some(match nearest(name, arguments.names()) {
        Some(near) => finding.hint(format!("{reason}; is `{near}` meant?")),
        None => finding.hint(reason),
    })
}
