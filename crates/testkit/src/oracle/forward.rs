//! The whole forward pass (spec/ds4-architecture.md 2.0): one shot over a token list.

use super::attention::{AttentionDump, attention};
use super::hyper::{Hyper, Mix, map_rows, read_streams, write_streams};
use super::model::{Mat, OracleModel, project, rms_norm};
use super::moe::{MoeDump, moe};
use crate::Error;

/// Which positions get logits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Rows {
    /// Every position.
    #[default]
    All,
    /// The last position.
    Last,
    /// These positions, in this order.
    List(Vec<usize>),
}

/// How to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// The roundings of spec 3: fp8 rows with a bf16 tail, Hadamard and fp4 in the indexer.
    pub kv_sim: bool,
    /// Positions that get logits.
    pub logits: Rows,
}

/// Everything one layer did. T = tokens, D = width.
#[derive(Clone, Debug, Default)]
pub struct LayerDump {
    /// Streams after the layer, `[T][n_hc * D]`.
    pub streams: Mat,
    /// Input of attention before its norm (the streams read), `[T][D]`.
    pub attn_in: Mat,
    /// Attention.
    pub attn: AttentionDump,
    /// Input of the feed-forward part before its norm, `[T][D]`.
    pub ffn_in: Mat,
    /// Router and experts.
    pub moe: MoeDump,
    /// Hyper-connection coefficients of the attention sublayer, one a token.
    pub attn_mix: Vec<Mix>,
    /// The same of the feed-forward sublayer.
    pub ffn_mix: Vec<Mix>,
}

/// A run.
#[derive(Clone, Debug, Default)]
pub struct Dump {
    /// One a layer.
    pub layers: Vec<LayerDump>,
    /// The last norm's output, `[T][D]`.
    pub final_norm: Mat,
    /// Positions of the logits.
    pub rows: Vec<usize>,
    /// Logits at `rows`, `[rows][n_vocab]`.
    pub logits: Mat,
}

impl OracleModel {
    /// Runs the model over `tokens` at positions 0, 1, ...
    ///
    /// # Errors
    /// `Config`, `Token`, `ExpertId`, `Row`, `MissingTensor`.
    pub fn forward(&self, tokens: &[u32], options: &RunOptions) -> Result<Dump, Error> {
        self.config.check(options.kv_sim)?;
        let rows = self.logit_rows(tokens.len(), &options.logits)?;
        let mut streams = self.embed(tokens)?;
        let mut layers = Vec::with_capacity(self.config.n_layer());
        for layer in 0..self.config.n_layer() {
            let dump = self.run_layer(layer, &streams, tokens, options.kv_sim)?;
            streams = dump.streams.clone();
            layers.push(dump);
        }
        let head = Hyper::new(self, "output_hc")?;
        let merged = from_rows(map_rows(&streams, |x| head.merge(x)), self.config.n_embd);
        let norm = self.tensor("output_norm.weight")?;
        let final_norm = rms_norm(merged, norm, self.config.rms_eps);
        let picked = final_norm.gather(rows.iter().copied());
        let logits = project(&picked, self.tensor("output.weight")?);
        Ok(Dump {
            layers,
            final_norm,
            rows,
            logits,
        })
    }

    fn logit_rows(&self, n: usize, rows: &Rows) -> Result<Vec<usize>, Error> {
        let rows = match rows {
            Rows::All => (0..n).collect(),
            Rows::Last => n.checked_sub(1).into_iter().collect(),
            Rows::List(rows) => rows.clone(),
        };
        match rows.iter().find(|r| **r >= n) {
            Some(row) => Err(Error::Row { row: *row, rows: n }),
            None => Ok(rows),
        }
    }

    /// All streams start as the embedding, unscaled.
    fn embed(&self, tokens: &[u32]) -> Result<Mat, Error> {
        let c = &self.config;
        let table = self.tensor("token_embd.weight")?;
        let n_vocab = c.n_vocab;
        if let Some((pos, token)) = tokens
            .iter()
            .copied()
            .enumerate()
            .find(|(_, t)| *t as usize >= n_vocab)
        {
            return Err(Error::Token {
                pos,
                token,
                n_vocab,
            });
        }
        let mut x = Mat::zeros(tokens.len(), c.n_hc * c.n_embd);
        x.par_rows(|t, row| {
            for stream in row.chunks_exact_mut(c.n_embd) {
                for (x, e) in stream.iter_mut().zip(table.row(tokens[t] as usize)) {
                    *x = f64::from(*e);
                }
            }
        });
        Ok(x)
    }

    fn run_layer(
        &self,
        layer: usize,
        x: &Mat,
        tokens: &[u32],
        kv_sim: bool,
    ) -> Result<LayerDump, Error> {
        let eps = self.config.rms_eps;
        let (attn_mix, attn_in) = self.read(&format!("blk.{layer}.hc_attn"), x)?;
        let h = rms_norm(attn_in.clone(), self.layer(layer, "attn_norm.weight")?, eps);
        let attn = attention(self, layer, &h, 0, kv_sim)?;
        let x = write(x, &attn.out, &attn_mix);
        let (ffn_mix, ffn_in) = self.read(&format!("blk.{layer}.hc_ffn"), &x)?;
        let h = rms_norm(ffn_in.clone(), self.layer(layer, "ffn_norm.weight")?, eps);
        let moe = moe(self, layer, &h, tokens)?;
        let streams = write(&x, &moe.out, &ffn_mix);
        Ok(LayerDump {
            streams,
            attn_in,
            attn,
            ffn_in,
            moe,
            attn_mix,
            ffn_mix,
        })
    }

    pub(super) fn read(&self, stem: &str, x: &Mat) -> Result<(Vec<Mix>, Mat), Error> {
        let hyper = Hyper::new(self, stem)?;
        let both = map_rows(x, |x| {
            let mix = hyper.mix(x);
            let u = read_streams(x, &mix.pre);
            (mix, u)
        });
        let (mixes, inputs) = both.into_iter().unzip();
        Ok((mixes, from_rows(inputs, self.config.n_embd)))
    }
}

pub(super) fn write(x: &Mat, a: &Mat, mixes: &[Mix]) -> Mat {
    let mut out = x.clone();
    out.par_rows(|t, row| row.copy_from_slice(&write_streams(x.row(t), a.row(t), &mixes[t])));
    out
}

pub(super) fn from_rows(rows: Vec<Vec<f64>>, cols: usize) -> Mat {
    Mat {
        rows: rows.len(),
        cols,
        data: rows.concat(),
    }
}
