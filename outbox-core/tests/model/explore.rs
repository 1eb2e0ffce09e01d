//! Breadth-first search through every reachable state.

use std::collections::HashMap;
use std::fmt::{self, Debug};
use std::hash::Hash;

/// A step, and where it leads or the promise that it breaks.
pub(crate) type Taken<S> = (<S as System>::Step, Result<<S as System>::State, String>);

/// What can be explored.
pub(crate) trait System {
    type State: Copy + Eq + Hash + Debug;
    type Step: Copy + Debug;

    fn initial(&mut self) -> Result<Self::State, String>;
    /// Takes every step that can be taken.
    fn steps(&mut self, from: &Self::State, taken: &mut Vec<Taken<Self>>);
    /// Whether a state is one that it must always be possible to get to.
    fn is_good_end(&self, state: &Self::State) -> bool;
    /// Whether a step is something that nobody can count on.
    fn is_fault(&self, step: Self::Step) -> bool;
}

/// How much was explored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Explored {
    pub(crate) states: usize,
    pub(crate) steps: usize,
}

/// A promise that is broken, and the shortest way to it.
pub(crate) struct Counterexample<S: System> {
    pub(crate) promise: String,
    pub(crate) trace: Vec<S::Step>,
}

impl<S: System> Debug for Counterexample<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "broken: {}", self.promise)?;
        self.trace.iter().zip(1..).try_for_each(|(step, n)| writeln!(f, "{n:>3}. {step:?}"))
    }
}

struct Search<S: System> {
    system: S,
    states: Vec<S::State>,
    numbers: HashMap<S::State, u32>,
    /// How each state was reached first.
    origins: Vec<Option<(u32, S::Step)>>,
    /// Steps that are no faults: from which state to which.
    counted_on: Vec<(u32, u32)>,
    steps: usize,
}

/// Looks at every reachable state, and from each for a way to a good end without any further fault.
pub(crate) fn explore<S: System>(system: S) -> Result<Explored, Counterexample<S>> {
    let mut search = Search {
        system,
        states: Vec::new(),
        numbers: HashMap::new(),
        origins: Vec::new(),
        counted_on: Vec::new(),
        steps: 0,
    };
    let initial = search.system.initial().map_err(|promise| search.counterexample(promise, None))?;
    search.visit(initial, None);
    let (mut number, mut taken) = (0, Vec::new());
    while let Some(state) = search.states.get(number as usize).copied() {
        search.system.steps(&state, &mut taken);
        for (step, end) in taken.drain(..) {
            search.follow(number, step, end)?;
        }
        number += 1;
    }
    search.nothing_is_stuck()?;
    Ok(Explored { states: search.states.len(), steps: search.steps })
}

impl<S: System> Search<S> {
    fn follow(
        &mut self,
        from: u32,
        step: S::Step,
        end: Result<S::State, String>,
    ) -> Result<(), Counterexample<S>> {
        let origin = Some((from, step));
        let to = end.map_err(|promise| self.counterexample(promise, origin))?;
        let to = self.visit(to, origin);
        self.steps += 1;
        if !self.system.is_fault(step) {
            self.counted_on.push((from, to));
        }
        Ok(())
    }

    fn visit(&mut self, state: S::State, origin: Option<(u32, S::Step)>) -> u32 {
        let next = self.states.len() as u32;
        let number = *self.numbers.entry(state).or_insert(next);
        if number == next {
            self.states.push(state);
            self.origins.push(origin);
        }
        number
    }

    fn nothing_is_stuck(&self) -> Result<(), Counterexample<S>> {
        let mut back = vec![Vec::new(); self.states.len()];
        for (from, to) in &self.counted_on {
            back[*to as usize].push(*from);
        }
        let good = (0..).zip(&self.states).filter(|(_, state)| self.system.is_good_end(state));
        let mut frontier: Vec<u32> = good.map(|(number, _)| number).collect();
        let mut saved = vec![false; self.states.len()];
        while let Some(number) = frontier.pop() {
            if !std::mem::replace(&mut saved[number as usize], true) {
                frontier.extend(&back[number as usize]);
            }
        }
        let promise = || "the message is never lost".to_owned();
        let stuck = saved.iter().position(|saved| !saved);
        stuck.map_or(Ok(()), |stuck| Err(self.counterexample(promise(), self.origins[stuck])))
    }

    fn counterexample(&self, promise: String, mut origin: Option<(u32, S::Step)>) -> Counterexample<S> {
        let mut trace = Vec::new();
        while let Some((number, step)) = origin {
            trace.push(step);
            origin = self.origins[number as usize];
        }
        trace.reverse();
        Counterexample { promise, trace }
    }
}
