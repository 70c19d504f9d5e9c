//! The draft model in f64, written from spec/dspark.md sections 1 to 3 and nothing else. It shares
//! the oracle's hyper-connections, experts and norms, as the model does; features, context rows,
//! attention inside a block and the heads are its own.
//!
//! Plain as the rest: it projects every feature row anew for each block and keeps nothing.

use std::collections::BTreeMap;

use super::attention::{attend, output, query_heads};
use super::forward::{from_rows, write};
use super::hyper::{Hyper, map_rows};
use super::margin::gap;
use super::model::{Mat, axpy, dot, inv_rms, matmul, project, rms_norm, widen};
use super::moe::moe;
use super::rope::Rope;
use super::{Dump, OracleConfig, OracleModel, Tensor, argmax};
use crate::Error;

/// Shape of a draft model.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct DraftConfig {
    /// Its stages, as a target of window layers without tables; `n_swa` is the context of a block.
    pub stage: OracleConfig,
    /// Rows of a block.
    pub block: usize,
    /// The token of every row but the first.
    pub mask: u32,
    /// Target layers whose outputs are the features.
    pub capture: Vec<usize>,
    pub rank: usize,
    /// Whether the confidence head also reads the Markov row.
    pub confidence_markov: bool,
}

/// A draft model: its tensors under the names of spec 5.1.
#[derive(Clone, Debug)]
pub struct OracleDraft {
    /// The shape.
    pub config: DraftConfig,
    /// All tensors, heads included.
    pub model: OracleModel,
}

/// What a block did.
#[derive(Clone, Debug, Default)]
pub struct BlockDump {
    /// Streams after each stage, `[block][n_hc * D]`.
    pub streams: Vec<Mat>,
    /// Merged streams, `[block][D]`: input of the confidence head.
    pub pre_norm: Mat,
    /// After the output norm, `[block][D]`: input of the tied head.
    pub normed: Mat,
    /// How close the closest choice of experts was.
    pub route_margin: f64,
}

/// What a chain did.
#[derive(Clone, Debug, Default)]
pub struct ChainDump {
    /// Logits with the Markov bias, `[depth][n_vocab]`.
    pub logits: Mat,
    /// Their largest, each row's bias by the token before.
    pub tokens: Vec<u32>,
    /// Log-odds of acceptance.
    pub confidence: Vec<f64>,
    /// Largest minus second logit.
    pub margin: Vec<f64>,
}

impl DraftConfig {
    /// Inputs of the confidence head.
    #[must_use]
    pub fn confidence_dim(&self) -> usize {
        self.stage.n_embd + if self.confidence_markov { self.rank } else { 0 }
    }

    /// Every tensor, by name, with its shape (slowest dimension first).
    #[must_use]
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (d, v, r) = (self.stage.n_embd, self.stage.n_vocab, self.rank);
        let mut list: Vec<(String, Vec<usize>)> = self
            .stage
            .tensors()
            .into_iter()
            .filter(|(name, _)| name != "token_embd.weight" && name != "output.weight")
            .collect();
        for (name, shape) in [
            ("dflash.fc.weight", vec![d, self.capture.len() * d]),
            ("dflash.hidden_norm.weight", vec![d]),
            ("dflash.dspark.markov.w1", vec![v, r]),
            ("dflash.dspark.markov.w2", vec![v, r]),
            (
                "dflash.dspark.confidence.weight",
                vec![1, self.confidence_dim()],
            ),
            ("dflash.dspark.confidence.bias", vec![1]),
        ] {
            list.push((name.to_owned(), shape));
        }
        list
    }
}

/// Features of a run: the captured layers' mean streams side by side, `[T][layers * D]`.
#[must_use]
pub fn features(dump: &Dump, capture: &[usize]) -> Mat {
    let rows = (0..dump.final_norm.rows)
        .map(|t| {
            let layers = capture.iter().flat_map(|l| dump.layers[*l].feature(t));
            layers.collect()
        })
        .collect();
    from_rows(rows, capture.len() * dump.final_norm.cols)
}

impl OracleDraft {
    /// A model of exactly the tensors its configuration names.
    ///
    /// # Errors
    /// `Config`, `MissingTensor`, `UnknownTensor`, `Shape`.
    pub fn new(config: DraftConfig, tensors: BTreeMap<String, Tensor>) -> Result<Self, Error> {
        config.stage.check(false)?;
        let expected: BTreeMap<_, _> = config.tensors().into_iter().collect();
        for (name, shape) in &expected {
            let t = tensors
                .get(name)
                .ok_or_else(|| Error::MissingTensor { name: name.clone() })?;
            if t.shape != *shape || t.data.len() != shape.iter().product::<usize>() {
                return Err(Error::Shape {
                    name: name.clone(),
                    expected: shape.clone(),
                    got: t.shape.clone(),
                });
            }
        }
        if let Some(name) = tensors.keys().find(|name| !expected.contains_key(*name)) {
            return Err(Error::UnknownTensor { name: name.clone() });
        }
        let model = OracleModel {
            config: config.stage.clone(),
            tensors,
        };
        Ok(Self { config, model })
    }

    /// What the stages attend to, from features `[T][layers * D]`: RMS norm of the features as they
    /// are, projection, norm (spec 1.2).
    ///
    /// # Errors
    /// `MissingTensor`.
    pub fn context(&self, features: &Mat) -> Result<Mat, Error> {
        let eps = self.config.stage.rms_eps;
        let mut f = features.clone();
        f.par_rows(|_, row| {
            let r = inv_rms(row, eps);
            row.iter_mut().for_each(|v| *v *= r);
        });
        let projected = project(&f, self.model.tensor("dflash.fc.weight")?);
        let norm = self.model.tensor("dflash.hidden_norm.weight")?;
        Ok(rms_norm(projected, norm, eps))
    }

    /// A block at `pos`: `embedded` `[block][D]` its input rows, `features` `[T][layers * D]` those of
    /// the `T` positions before it (all there are; the window is cut here).
    ///
    /// # Errors
    /// `Config` if there are more features than positions, `MissingTensor`.
    pub fn block(&self, embedded: &Mat, pos: usize, features: &Mat) -> Result<BlockDump, Error> {
        let c = &self.config.stage;
        if features.rows > pos {
            let why = format!("{} feature rows before position {pos}", features.rows);
            return Err(Error::Config {
                key: "features",
                why,
            });
        }
        let keep = features.rows.min(c.n_swa);
        let seen = features.gather(features.rows - keep..features.rows);
        let context = self.context(&seen)?;
        let mut dump = BlockDump {
            route_margin: f64::INFINITY,
            ..BlockDump::default()
        };
        let mut x = Mat::zeros(embedded.rows, c.n_hc * c.n_embd);
        x.par_rows(|t, row| {
            for stream in row.chunks_exact_mut(c.n_embd) {
                stream.copy_from_slice(embedded.row(t));
            }
        });
        for stage in 0..c.n_layer() {
            x = self.stage(stage, &x, pos, &context, &mut dump.route_margin)?;
            dump.streams.push(x.clone());
        }
        let head = Hyper::new(&self.model, "output_hc")?;
        dump.pre_norm = from_rows(map_rows(&x, |x| head.merge(x)), c.n_embd);
        let norm = self.model.tensor("output_norm.weight")?;
        dump.normed = rms_norm(dump.pre_norm.clone(), norm, c.rms_eps);
        Ok(dump)
    }

    fn stage(
        &self,
        stage: usize,
        x: &Mat,
        pos: usize,
        context: &Mat,
        margin: &mut f64,
    ) -> Result<Mat, Error> {
        let (m, eps) = (&self.model, self.config.stage.rms_eps);
        let (mix, u) = m.read(&format!("blk.{stage}.hc_attn"), x)?;
        let h = rms_norm(u, m.layer(stage, "attn_norm.weight")?, eps);
        let x = write(x, &self.attention(stage, &h, pos, context)?, &mix);
        let (mix, u) = m.read(&format!("blk.{stage}.hc_ffn"), &x)?;
        let h = rms_norm(u, m.layer(stage, "ffn_norm.weight")?, eps);
        let experts = moe(m, stage, &h, &vec![0; h.rows])?;
        for t in 0..h.rows {
            let k = experts.route_id[t].len();
            *margin = margin.min(gap(experts.route_score.row(t), k));
        }
        Ok(write(&x, &experts.out, &mix))
    }

    /// Every row sees the context and all rows of its block (spec 1.5).
    fn attention(&self, stage: usize, h: &Mat, pos: usize, context: &Mat) -> Result<Mat, Error> {
        let (m, c) = (&self.model, &self.config.stage);
        let rope = Rope::new(c, 0);
        let get = |suffix: &str| m.layer(stage, suffix);
        let qr = rms_norm(
            project(h, get("attn_q_a.weight")?),
            get("attn_q_a_norm.weight")?,
            c.rms_eps,
        );
        let mut q = project(&qr, get("attn_q_b.weight")?);
        q.par_rows(|t, row| query_heads(c, &rope, pos + t, row));
        let keys = |x: &Mat, first: usize| -> Result<Mat, Error> {
            let kv = project(x, get("attn_kv.weight")?);
            let mut kv = rms_norm(kv, get("attn_kv_a_norm.weight")?, c.rms_eps);
            kv.par_rows(|t, row| rope.forward(row, first + t));
            Ok(kv)
        };
        let before = keys(context, pos - context.rows)?;
        let own = keys(h, pos)?;
        let rows: Vec<&[f64]> = (0..before.rows)
            .map(|t| before.row(t))
            .chain((0..own.rows).map(|t| own.row(t)))
            .collect();
        let sinks = &get("attn_sinks.weight")?.data;
        let mut heads = Mat::zeros(h.rows, q.cols);
        heads.par_rows(|t, out| {
            let per_head = q.row(t).chunks_exact(c.head_dim).zip(sinks);
            for (o, (q, sink)) in out.chunks_exact_mut(c.head_dim).zip(per_head) {
                attend(q, &rows, f64::from(*sink), o);
                rope.inverse(o, pos + t);
            }
        });
        output(m, stage, &heads)
    }

    /// The greedy chain over the first `depth` rows of a block (spec 2 and 3). `head`: the target's
    /// output matrix.
    ///
    /// # Errors
    /// `MissingTensor`.
    pub fn chain(
        &self,
        block: &BlockDump,
        head: &Tensor,
        seed: u32,
        depth: usize,
    ) -> Result<ChainDump, Error> {
        let get = |name: &str| self.model.tensor(&format!("dflash.dspark.{name}"));
        let (w1, w2) = (get("markov.w1")?, get("markov.w2")?);
        let weight = widen(&get("confidence.weight")?.data);
        let bias = f64::from(get("confidence.bias")?.data[0]);
        let n_vocab = head.shape[0];
        let mut dump = ChainDump {
            logits: Mat::zeros(depth, n_vocab),
            ..ChainDump::default()
        };
        let mut previous = seed;
        for i in 0..depth {
            let markov = from_rows(vec![widen(w1.row(previous as usize))], self.config.rank);
            let state = block.normed.gather([i]);
            let mut logits = matmul(&state, &head.data, n_vocab).data;
            axpy(1.0, &project(&markov, w2).data, &mut logits);
            let mut input = block.pre_norm.row(i).to_vec();
            if self.config.confidence_markov {
                input.extend_from_slice(&markov.data);
            }
            dump.confidence.push(dot(&input, &weight) + bias);
            dump.margin.push(gap(&logits, 1));
            previous = argmax(&logits).unwrap_or(0);
            dump.tokens.push(previous);
            dump.logits.row_mut(i).copy_from_slice(&logits);
        }
        Ok(dump)
    }
}
