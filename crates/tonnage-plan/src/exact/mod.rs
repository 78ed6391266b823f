// SPDX-License-Identifier: MIT OR Apache-2.0
//! Complete search for rigid items: does everything fit below a capacity?
//!
//! For small hard instances, where the best greedy order leaves ten per cent and more.
//!
//! **State.** Each section has a floor, below which everything is decided, and a load, which is still to come. Each
//! item that is left has a support: the highest floor it covers, so the lowest offset it can still have.
//!
//! **Propagation.** The floor of a section rises to the least support of the items left there; supports rise with
//! floors; a floor plus a load above the capacity fails. Space below a raised floor is wasted and never comes back, so
//! a tight section soon decides everything around it.
//!
//! **Branching.** In a section at the bottom of a valley: which of the items that fit the valley covers it at its
//! floor, or none, and then the floor goes up to the next level that anything could have there. Each plan is met by
//! exactly one branch; there are no permutations to break. The section with the fewest options comes first, and
//! among equals the one where the search failed most.
//!
//! **Limited branching.** A floor that goes up because something stands on a neighbour is mostly a waste, and there is
//! such a choice at almost every node. Some runs leave it out: the floor goes up only to what crosses a wall. They reach
//! plans that complete runs do not reach in time, but when they fail nothing is proved, so their failures are kept
//! apart and complete runs go on beside them.
//!
//! **Parts.** When no item crosses between two sections, both sides are solved on their own, so a failure in one is
//! not repeated for every plan of the other. An item that lives through a whole part can lie at its top without
//! loss.
//!
//! **Failure cache.** What failed is remembered and not tried again (`failures`).
//!
//! **Restarts.** Running times have heavy tails: most runs end within some hundred nodes or not at all. Runs are
//! short, vary by rule and chance, and grow in Luby's sequence.
//!
//! **Stalled bounds.** A bound that is not reached for long may be out of reach. Then most runs try capacities between it
//! and what is known, stay short, and sometimes start without the weights of earlier failures, which would keep them
//! in one corner.

mod branch;
mod failures;
mod height;
mod propagate;
mod restarts;
mod search;

pub(crate) use restarts::{Goal, search};
