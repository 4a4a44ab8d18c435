use super::*;

#[test]
fn a_call_moves_as_the_table_says() {
    let at = Moment { text: "t0".into(), epoch_ms: 0 };
    let queued = QueuedCall::new("a".into(), &Identity::local(), "{}".into(), &at);
    let running = step(&queued, CallEvent::Taken { by: "one" }).unwrap();
    let accounted = AuditPlace { writer: "one".into(), seq: 7 };
    let finished = CallEvent::Finished { result: "{}", at: "t1", accounted: &accounted };
    let done = step(&running, finished).unwrap();
    assert_eq!((done.state, done.worker.as_deref()), (QueueState::Done, Some("one")));
    assert_eq!(done.finished_by, Some(accounted.clone()));
    let progress = Value::from(1);
    let own = CallEvent::Progressed { by: "one", progress: &progress };
    let other = CallEvent::Progressed { by: "two", progress: &progress };
    use QueueState::{Done, Queued, Running};
    // State, worker and deliveries after each event, from `queued` and from `running`.
    for (event, from_queued, from_running) in [
        (CallEvent::Taken { by: "two" }, Some((Running, 1)), Some((Running, 2))),
        (CallEvent::Disowned, Some((Done, 0)), Some((Done, 1))),
        (CallEvent::Released { by: "one" }, None, Some((Queued, 0))),
        (CallEvent::Released { by: "two" }, None, None),
        (own, None, Some((Running, 1))),
        (other, None, None),
        (CallEvent::Cancelled, Some((Queued, 0)), Some((Running, 1))),
        (finished, Some((Done, 0)), Some((Done, 1))),
    ] {
        let after = |call| step(call, event).map(|next| (next.state, next.deliveries));
        assert_eq!(after(&queued), from_queued, "{event:?}");
        assert_eq!(after(&running), from_running, "{event:?}");
        assert_eq!(step(&done, event), None, "{event:?}");
    }
    assert!(step(&running, CallEvent::Cancelled).unwrap().cancel);
    assert_eq!(step(&running, CallEvent::Released { by: "one" }).unwrap(), queued);
    assert_eq!(step(&running, own).unwrap().progress, Some(progress.clone()));
}
