#!/usr/bin/env python3
"""Writes the tokenizer's golden files with the reference implementation (PyPI `tokenizers`):
vocab.txt (specials, then merges, of the small model's tokenizer.json), parity.jsonl (generated texts
and their ids), classes.txt (a digest of what the reference's regular expressions match).

usage: make_parity.py TOKENIZER_JSON OUT_DIR"""

import json
import random
import sys

from tokenizers import Regex, Tokenizer, pre_tokenizers

R = random.Random(20260731)

WORDS = """the of and river house quickly don't it's we're I'll naïve café straße Übung
 façade jalapeño coöperate résumé Ångström łódź živjo Привет мир говорить Ελληνικά κόσμος עברית
 שלום العربية مرحبا हिन्दी नमस्ते বাংলা ไทย สวัสดี 한국어 안녕하세요 Tiếng Việt ქართული""".split()
CJK = "你好世界的一是在不了有和人这中大为上个国我以要他时来用们生到作地于出就分对成会可主发年动同工也能下过子说产种面而方后多定行学法所民得经十三之进着等部度家电力里如水化高自二理起小物现实加量都两体制机当使点从业本去把性好应开它合还因由其些然前外天政四日那社义事平形相全表间样与关各重新线内数正心反你明看原又么利比或但质气第向道命此变条只没结解问意建月公无系军很情者最立代想已通并提直题党程展五果料象员革位入常文总次品式活设及管特件长求老头基资边流路级少图山统接知较将组见计别她手角期根论运农指几九区强放决西被干做必战先回则任取据处队南给色光门即保治北造百规热领七海口东导器压志世金增争济阶油思术极交受联什认六共权收证改清己美再采转更单风切打白教速花带安场身车例真务具万每目至达走积示议声报斗完类八离华名确才科张信马节话米整空元况今集温传土许步群广石记需段研界拉林律叫且究观越织装影算低持音众书布复容儿须际商非验连断深难近矿千周委素技备半办青省列习响约支般史感劳便团往酸历市克何除消构府称太准精值号率族维划选标写存候毛亲快效斯院查江型眼王按格养易置派层片始却专状育厂京识适属圆包火住调满县局照参红细引听该铁价严龙飞"
KANA = "ひらがなカタカナ・ー゛゜ゝヽ゠ヿぁァんン日本語東京都は今日もよい天気です"
EMOJI = "🙂🎉👍🏽👩‍👩‍👧🇩🇪❤️🚀✨♠︎🤷‍♂️"
MARKS = ["e\u0301", "a\u0308\u0301", "n\u0303", "\u0301", " \u0301x", "!\u0323", "क्षि", "가", "Z\u0351\u0327"]
DIGITS = ["0123456789", "٠١٢٣٤٥٦٧٨٩", "०१२३", "０１２３４５", "Ⅻ", "½", "²³", "𝟘𝟙𝟚", "一二三", "㉑", "௧௨"]
SPACES = [" ", "  ", "    ", "\t", "\t\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", "\u00a0", "\u3000", "\u2028", "\v", "\f", "\x85", "\u200a", "        ", "\n\n\n\n"]
PUNCT = [c for c in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"] + list("。，、；：？！（）「」『』【】《》—…·“”‘’«»‹›¿¡§¶†‡•‰€£¥₹¢©®™°±×÷≤≥≠≈∞√∑∏∫∂∆←→↑↓⇒⇔∀∃∈∉⊂∪∩") + ["｜", "▁", "<｜", "｜>", "</", "/>", "->", "::", "=>", "!=", "**", "```", "...", "!!!", " ~"]
ODD = ["\x00", "\x01\x02", "\x7f", "\u200b", "\u200d", "\ufeff", "\ue000", "\U000e0041", "\u0378", "\U0001fbf5", "\u10d40"]
CODE = ["fn main() {\n    let x: u32 = 0x1F;\n}\n", "for (int i = 0; i < n; ++i) {\n\t\ta[i] += b[i];\n\t}\r\n", "def f(a, *b, **c):\n    return {'k': a[1:-1]}\n",
        "SELECT * FROM t WHERE a >= 10 AND b != 'x';", "<div class=\"a-b\">&nbsp;</div>\n", "https://example.org/a?b=1&c=%20#d", "{\"a\":[1,2.5e-3,null],\"b\":\"\\u00e9\"}", "if __name__ == \"__main__\":\n", "#include <stdio.h>\n", "// ----\n", "x86_64-unknown-linux-gnu", "v1.22.333", "$HOME/.cargo", "C:\\Users\\a", "/* a\n * b\n */", "λx.x", "a_b__c", "camelCaseWord HTTPServer2"]
SPECIAL = ["<｜begin▁of▁sentence｜>", "<｜User｜>", "<think>", "</think>", "｜DSML｜", "<tool_result>", "<｜end▁of▁sentence｜>"]
FIXED = [" ~", "2026", "    int", ">;\n", "", " ", "\n", "a", "1234567", "a1b22c333d4444", "。。。\n\n你好", "x  ", "x \n", " \n x", "\r\n\r\n\r\n", "'s 't 're", "a" * 300, " " * 257, "\n" * 66, "=" * 80 + "\n", "ab" * 100, "\t" * 9 + "x", "你" * 50, "a\u0301" * 40]


def piece():
    k = R.randrange(12)
    if k < 3:
        return R.choice(["", " "]) + R.choice(WORDS)
    if k == 3:
        return "".join(R.choice(CJK) for _ in range(R.randint(1, 6)))
    if k == 4:
        return "".join(R.choice(KANA) for _ in range(R.randint(1, 5)))
    if k == 5:
        return "".join(R.choice(R.choice(DIGITS)) for _ in range(R.randint(1, 5))) if R.random() < .5 else str(R.randrange(10 ** R.randint(1, 12)))
    if k == 6:
        return R.choice(SPACES) * R.choice([1, 1, 1, 2, 3])
    if k == 7:
        return "".join(R.choice(PUNCT) for _ in range(R.randint(1, 3)))
    if k == 8:
        return R.choice(CODE)
    if k == 9:
        return R.choice(list(EMOJI)) if R.random() < .5 else R.choice(MARKS)
    if k == 10:
        return R.choice(ODD + SPECIAL) if R.random() < .4 else " " * R.randint(1, 12) + R.choice(WORDS)
    return chr(R.choice([R.randrange(0x20, 0x250), R.randrange(0x250, 0xD800), R.randrange(0xE000, 0x11000), R.randrange(0x11000, 0x1FC00)]))


def main(source, out):
    spec = json.load(open(source))
    specials = [t["content"] for t in spec["added_tokens"]]
    merges = [" ".join(m) if isinstance(m, list) else m for m in spec["model"]["merges"]]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    order = specials + alphabet + ["".join(m.split(" ")) for m in merges]
    assert {t: i for i, t in enumerate(order)} == spec["model"]["vocab"], "vocab.txt relies on this order"
    with open(f"{out}/vocab.txt", "w") as f:
        f.write("\n".join(specials) + "\n\n" + "\n".join(merges) + "\n")
    # User text: nothing in it is special, so the added tokens are taken out of the reference.
    spec["added_tokens"] = []
    reference = Tokenizer.from_str(json.dumps(spec))
    texts, total = list(FIXED), 0
    with open(f"{out}/parity.jsonl", "w") as f:
        while texts or total < 26_000:
            text = texts.pop(0) if texts else "".join(piece() for _ in range(R.randint(1, 24)))
            ids = reference.encode(text, add_special_tokens=False).ids
            total += len(ids)
            f.write(json.dumps({"text": text, "ids": ids}, separators=(",", ":"), ensure_ascii=False) + "\n")
    classes = {}
    for name, rx in [("N", r"\p{N}"), ("L", r"\p{L}"), ("S", r"[\p{P}\p{S}]"), ("M", r"\p{M}"), ("B", r"[\r\n]"), ("W", r"(?![\r\n])\s")]:
        split = pre_tokenizers.Split(Regex(rx), "removed")
        for c in range(0x110000):
            if not 0xD800 <= c < 0xE000 and not split.pre_tokenize_str(chr(c)):
                assert c not in classes, hex(c)
                classes[c] = name
    digest = 0xCBF29CE484222325
    for c in range(0x110000):
        if not 0xD800 <= c < 0xE000:
            digest = ((digest ^ ord(classes.get(c, "-"))) * 0x100000001B3) & (2**64 - 1)
    with open(f"{out}/classes.txt", "w") as f:
        f.write(f"{digest:016x}\n")
    print(total, "tokens", f"{digest:016x}")


main(*sys.argv[1:])
