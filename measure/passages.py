"""Ordinary sentences in many languages, and code: what measurement prompts are made of.

``{name}``, ``{place}`` and ``{number}`` are filled in anew each time, so that a sentence that comes back reads on.
"""

from __future__ import annotations

OPENINGS = (
    *("Anna", "Boris", "Clara", "Daniel", "Elif", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Katya", "Lucia", "Marek"),
    *("Nadia", "Oscar", "Priya", "Quentin", "Rosa", "Samir", "Tomoko", "Ursula", "Viktor", "Wanda", "Xavier", "Yusuf"),
    *("Zora", "after breakfast", "before noon", "close to the station", "during the meeting", "early this morning"),
    *("for three weeks", "given the weather", "however small", "in the old harbour", "just before dawn"),
    *("keeping the windows open", "later that year", "most of the time", "near the bridge", "on the second floor"),
    *("past the last house", "quite often", "right after lunch", "since the spring", "towards evening"),
    *(
        "under the new roof",
        "very slowly",
        "with some luck",
        "xylophones aside",
        "year after year",
        "zero degrees outside",
    ),
)
"""How a prompt begins: each with another first byte, so that two of them share no first token in any vocabulary."""

NAMES = ("Amara", "Bruno", "Chen", "Dina", "Emil", "Fatou", "Goran", "Hana", "Igor", "Julia", "Kofi", "Lena", "Mateo")
PLACES = (
    "Bergen",
    "Coimbra",
    "Dakar",
    "Esbjerg",
    "Ghent",
    "Hobart",
    "Izmir",
    "Kazan",
    "Lille",
    "Oaxaca",
    "Pune",
    "Turku",
)

ENGLISH = (
    "The ferry to {place} leaves at half past {number}, and whoever misses it sleeps on a bench.",
    "{name} repaired the radio with a spoon, two wires and a great deal of patience.",
    "Our well has given clear water for {number} years, though nobody remembers who dug it.",
    "When the bakery closed, the whole street in {place} smelled of nothing for a month.",
    "Please check the invoice again: {number} boxes were ordered, but only nine arrived.",
    "A good map tells you where the road is; a better one tells you where it floods.",
    "{name} asked why the bridge hums, and the engineer talked about wind until supper.",
    "The museum keeps {number} clocks, and on purpose no two of them agree.",
    "Snow fell so quietly that the sheep noticed it before the shepherd did.",
    "If the pump stops again, close valve {number} first and only then call {name}.",
    "Her grandfather grew pears against a south wall and sold them one by one in {place}.",
    "The report is short because the experiment failed early, which saved everybody time.",
    "Between the two villages lies a moor that takes {number} minutes by day and an hour by night.",
    "{name} reads the last page of every book first and has never been disappointed.",
    "The orchestra tuned, the lights went down, and somewhere a telephone began to ring.",
    "Copper gets warm faster than iron, so the cook in {place} trusts the old pan.",
)

LATIN = (
    "Der Zug nach {place} hält heute nicht in jedem Dorf, weil auf Gleis {number} gebaut wird.",
    "{name} hat den Schlüssel unter den Blumentopf gelegt und es sofort wieder vergessen.",
    "Le marché de {place} ouvre à {number} heures, mais les meilleurs fromages partent avant.",
    "{name} a promis de rendre la bicyclette dès que la pluie aura cessé.",
    "La biblioteca cerró temprano porque {name} no encontraba la llave de la puerta lateral.",
    "En {place} el viento cambia {number} veces al día y nadie se fía de las nubes.",
    "Il treno era in ritardo di {number} minuti, così abbiamo bevuto un altro caffè.",
    "A ponte velha de {place} foi pintada de verde, e metade da cidade ainda protesta.",
    "De sluis gaat om {number} uur open en dan varen de boten achter elkaar naar {place}.",
    "Na stacji w {place} czekało {number} osób, a pociąg i tak odjechał z innego peronu.",
    "Sillan alla virtaa joki, jonka nimeä {name} ei koskaan muista oikein.",
    "{name} sabah erkenden kalktı, çayı demledi ve {place} yolunu haritada aradı.",
    "Vlak do {place} má zpoždění {number} minut, takže stihneme ještě polévku.",
    "Fjorden ved {place} frøs til for første gang på {number} år, og barna gikk på skøyter.",
)

OTHER_SCRIPTS = (
    "Поезд в {place} опаздывает на {number} минут, и мы пьём чай у окна.",
    "{name} вчера нашла старую карту, на которой нет ни одной дороги.",
    "昨天下午，{name}在河边的小店里买了{number}本旧书。",
    "会议改到星期四，请把第{number}号文件带来。",
    "駅前の本屋は{number}時に閉まるので、{name}さんは急いで歩いた。",
    "雨が止んだら、橋の向こうまで散歩に行きましょう。",
    "{name}은 아침마다 {number}분 동안 강가를 걷는다.",
    "Το καράβι για το νησί φεύγει στις {number} και ο αέρας δυναμώνει.",
    "وصل القطار إلى المدينة متأخرا {number} دقيقة بسبب المطر.",
    "नदी के किनारे {number} पेड़ हैं और उनके नीचे बच्चे खेलते हैं।",
    "הספרייה נפתחת בשעה {number} ונסגרת לפני הערב.",
    "Човен {name} стоїть біля мосту вже {number} тижнів.",
)

CODE = (
    "def total(prices: list[float], rate: float = 0.{number}) -> float:\n    return sum(prices) * (1 + rate)\n",
    "SELECT city, count(*) AS visits FROM trips WHERE year > {number} GROUP BY city ORDER BY visits DESC;",
    'for (const stop of route) {{ if (stop.wait > {number}) console.log(stop.name, "{place}"); }}',
    'fn area(width: f64, height: f64) -> f64 {{ width * height / {number}.0 }} // as "{name}" measured it',
    'grep -c "{name}" notes.txt | sort -n | tail -n {number} > summary.log',
    '{{"station": "{place}", "tracks": {number}, "open": true, "keeper": "{name}"}}',
    "while (read(sensor, &value) > 0 && value < {number}) {{ mean += (value - mean) / ++count; }}",
    "<li class='stop'><a href='/lines/{number}'>{place}</a> <small>by {name}</small></li>",
    "func Retry(limit int) error {{ for i := 0; i < limit; i++ {{ time.Sleep({number} * time.Second) }} }}",
    "server:\n  host: {place}.example\n  workers: {number}\n  owner: {name}\n",
)
