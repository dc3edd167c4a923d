//! Models of the step time as a function of the number p of replicas.
//!
//! - *Strong scaling*: t(p) = t1 (s + (1 - s) / p) + α log2(p). The share s of the work is serial and does not decrease
//!   with more replicas (Amdahl, Validity of the single processor approach to achieving large scale computing
//!   capabilities, AFIPS 1967).
//! - *Weak scaling*: t(p) = t1 + α log2(p) + β 2 (p - 1) / p. The work of a replica is constant, so the speed-up is
//!   Gustafson's scaled one (Reevaluating Amdahl's law, CACM 31(5), 1988); communication grows.
//! - *Communication*: latency and bandwidth add up (Hockney, The communication challenge for MPP, Parallel Computing
//!   20(3), 1994). An all-reduce over a tree takes log2(p) rounds; one over a ring, or by halving and doubling, sends
//!   2 (p - 1) / p times the gradient (Thakur, Rabenseifner and Gropp, Optimization of collective communication
//!   operations in MPICH, IJHPCA 19(1), 2005).
//!
//! All coefficients are times and none is negative; [`super::fit`] determines them.

use serde::Serialize;

use super::measurement::Mode;

/// A term of the step time, in units of its coefficient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Term {
    /// 1: work of every replica, independent of their number.
    Constant,
    /// 1/p: work divided among replicas.
    Shared,
    /// log2(p): rounds over a tree.
    Tree,
    /// 2 (p - 1) / p: data sent over a ring.
    Ring,
}

/// A parameter of the model: its symbol, its meaning, and its weights on the coefficients.
pub type Parameter = (&'static str, &'static str, [f64; 3]);

impl Term {
    /// Its value for a number of replicas.
    pub fn at(self, replicas: f64) -> f64 {
        match self {
            Self::Constant => 1.0,
            Self::Shared => 1.0 / replicas,
            Self::Tree => replicas.log2(),
            Self::Ring => 2.0 * (replicas - 1.0) / replicas,
        }
    }

    /// The term in the formula of a mode.
    pub fn symbol(self, mode: Mode) -> &'static str {
        match (self, mode) {
            (Self::Constant, Mode::Weak) => "t1",
            (Self::Constant, Mode::Strong) => "t1 s",
            (Self::Shared, _) => "t1 (1-s)/p",
            (Self::Tree, _) => "\u{3b1} log2(p)",
            (Self::Ring, _) => "\u{3b2} 2(p-1)/p",
        }
    }
}

impl Mode {
    /// The terms of its model, the most important first.
    pub fn terms(self) -> [Term; 3] {
        match self {
            // If tree and ring cannot be distinguished, the tree is the more conservative choice: its cost never levels
            // off.
            Self::Weak => [Term::Constant, Term::Tree, Term::Ring],
            Self::Strong => [Term::Constant, Term::Shared, Term::Tree],
        }
    }

    /// The formula of the step time.
    pub fn formula(self) -> &'static str {
        match self {
            Self::Weak => "t(p) = t1 + \u{3b1} log2(p) + \u{3b2} 2(p-1)/p",
            Self::Strong => "t(p) = t1 (s + (1-s)/p) + \u{3b1} log2(p)",
        }
    }

    /// The parameters of its formula, as sums of coefficients.
    pub fn parameters(self) -> Vec<Parameter> {
        match self {
            Self::Weak => vec![
                ("t1", "a step of one replica", [1.0, 0.0, 0.0]),
                ("\u{3b1}", "a round of communication over a tree", [0.0, 1.0, 0.0]),
                ("\u{3b2}", "the gradient once over a ring", [0.0, 0.0, 1.0]),
            ],
            Self::Strong => vec![
                ("t1", "a step of one replica", [1.0, 1.0, 0.0]),
                ("\u{3b1}", "a round of communication over a tree", [0.0, 0.0, 1.0]),
            ],
        }
    }
}
