// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where buffers would lie if their lifetimes had been known in advance.
//!
//! * `problems` are what is planned: groups of buffers that share a memory;
//! * `recording`, [`csv`] and [`onnx`] read them, and `step` finds one step of a recording;
//! * `report` plans them and checks the plans;
//! * `packing` puts the plan of one process on one device beside its holdings.
//!
//! ```
//! use tonnage_analysis::plan::{Wanted, csv, plan};
//! use tonnage_plan::Options;
//!
//! let text = "id,lower,upper,size\nhidden,0,3,100\ngradient,2,5,50\noutput,3,6,100\n";
//! let wanted = Wanted::default();
//! let problems = csv::problem(text.as_bytes(), &wanted)?;
//! let report = plan(&problems, &wanted, &Options::default())?;
//! assert_eq!(report.groups[0].peak, 150);
//! assert_eq!(report.groups[0].status, "optimal");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod csv;
pub mod onnx;
mod packing;
mod problems;
mod recording;
mod report;
mod step;

pub(crate) use step::repeated;

pub use packing::{Arena, Packing, PackingError, PlacedBlock, packing};
pub use problems::{GraphFacts, Group, Name, Problems, Step, Wanted};
pub use recording::problems;
pub use report::{Conflict, GroupReport, Placement, PlanError, Report, SCHEMA_VERSION, plan};
